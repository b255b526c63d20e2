"""Functions that are cut at a write below a folder: killed before it, or out of disk space from there on."""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

How = Literal["killed", "disk full", "file full"]
WRITING = os.O_WRONLY | os.O_RDWR
OTHERS = ("os.rename", "os.remove", "os.truncate", "os.mkdir", "os.link")
"""Calls besides opening a file that change a folder, as Python's audit hooks name them."""


def cut(function: Callable[[], int], folder: Path, at: int | str, how: How = "killed") -> int:
    """Run `function` in a process of its own, cut below `folder` at its write number `at` (from 0), or at the first
    write to a file with this name. `file full`: every write to that file but the first three fails, and no other.

    Returns the exit status, negative for a signal: that of the function if it has fewer writes.
    """
    if (child := os.fork()) == 0:
        seen: list[str] = []

        def hook(event: str, arguments: tuple[object, ...]) -> None:
            opened = event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING
            place = os.path.abspath(str(arguments[0])) if opened or event in OTHERS else ""
            if not place.startswith(str(folder)) or place.endswith(".lock"):
                return
            seen.append(name := re.sub(r"\.\d+\.tmp$|\.tmp$", "", Path(place).name))
            if how == "file full" and (name != at or seen.count(name) <= 3):
                return
            if at in seen if isinstance(at, str) else len(seen) > at:
                if how != "killed":
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), place)
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        status = 99
        try:
            status = function()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
