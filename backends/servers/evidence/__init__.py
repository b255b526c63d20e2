"""Evidence of a server's decode loop from outside: its own profiler, its log, its flags.

    tracing.py      a server's own profiler, and one untimed block under it
    second_pass.py  a second pass over a text, for the rounding of its logits
    log_lines.py    findings about PERF_MODE invariants in an engine's log and other files

`failures.py`, one folder up, has the lines that say why a server has failed.
"""
