"""Evidence of a server's decode loop from outside: its own profiler, its log, its flags.

    profilers.py    how servers are asked for a profile: flags, endpoints, where the file comes
    tracing.py      one untimed block under a server's own profiler → `protocols.Activity`
    log_lines.py    lines of engines' logs that say something about a PERF_MODE invariant
    log_reading.py  those lines in a log, with file and line number
    outputs.py      outputs that hold the tokens of several steps, of a server that counts outputs
    engine_files.py findings in all of an engine's files: logs and lists of products

`failures.py`, one folder up, has the lines that say why a server has failed.
"""
