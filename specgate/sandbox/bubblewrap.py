"""bubblewrap, the program that makes a sandbox: it hides other processes and dies as a whole."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from specgate.sandbox.view import View, gpu_devices

PROGRAM: Final = "bwrap"
KERNEL_SETTINGS: Final = tuple(f"/proc/{name}" for name in ("sys", "sysrq-trigger", "irq", "bus", "fs"))
"""Files that root can write even without capabilities: `kernel/core_pattern` among them names a program that the kernel
starts outside of the sandbox.
"""


def bubblewrap(view: View, folder: Path, command: Sequence[str]) -> list[str]:
    """Return the command line (`man bwrap`) that runs `command` in `folder`, with the environment of its starter.

    It begins with the program's path: an engine's own PATH, by which it is started, may not have it.
    """
    mounts = {"empty": "--tmpfs {0}", "shown": "--ro-bind {0} {0}", "writable": "--bind {0} {0}"}
    return [
        *(shutil.which(PROGRAM) or PROGRAM, "--die-with-parent", "--new-session", "--cap-drop", "ALL"),
        *("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
        *(() if view.network else ("--unshare-net",)),
        *("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"),
        *(word for path in KERNEL_SETTINGS for word in ("--ro-bind-try", path, path)),
        *(word for path in gpu_devices() for word in ("--dev-bind", path, path)),
        *(word.format(path) for path, kind in view.mounts() for word in mounts[kind].split()),
        *("--chdir", str(folder), "--", *command),
    ]


def installed() -> str | None:
    """Return name and version of the program, as `bubblewrap 0.8.0`; None where it is not on PATH."""
    if not shutil.which(PROGRAM):
        return None
    done = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=False)
    number = re.search(r"\d[\w.]*", done.stdout)
    return f"bubblewrap {number[0] if number else 'of an unknown version'}"
