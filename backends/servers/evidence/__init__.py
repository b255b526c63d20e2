"""Evidence of a server's decode loop from outside: its own profiler, its log, its flags.

    profilers.py    how servers are asked for a profile: flags, endpoints, where the file comes
    tracing.py      one untimed block under a server's own profiler
    log_lines.py    findings about PERF_MODE invariants in an engine's log and other files

`failures.py`, one folder up, has the lines that say why a server has failed.
"""
