"""A program that tries a sandbox from inside: `python -I probe.py HIDDEN SOURCE`. It needs the stdlib alone.

It prints what it sees as one line of JSON, leaves a child that outlives it unless the sandbox ends, and waits.
"""

from __future__ import annotations

import json
import os
import signal
import sys

CORE_PATTERN = "/proc/sys/kernel/core_pattern"
"""Root can name a program here that the kernel then starts outside of the sandbox."""


def main(hidden: str, source: str) -> None:
    """Print which processes and files are seen, and which files can be written."""
    written = [path for path in (source, os.path.join(hidden, "ledger"), CORE_PATTERN) if _can_append(path)]
    processes = sum(name.isdigit() for name in os.listdir("/proc"))
    seen = {"processes": processes, "hidden": sorted(os.listdir(hidden)), "written": written}
    if os.fork() == 0:
        os.setsid()
        signal.pause()
    print(json.dumps(seen), flush=True)
    signal.pause()


def _can_append(path: str) -> bool:
    try:
        with open(path, "r+b"):
            return True
    except OSError:
        return False


if __name__ == "__main__":
    main(*sys.argv[1:])
