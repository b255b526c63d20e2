"""A program of its own: run a command, and leave nothing of it behind, whatever happens to whoever asked for it.

    python -I supervisor.py GRACE_S COMMAND…

The command gets a session of its own. It is ended, with all that it has started, when the pipe on our standard input
closes (which it does however the asking process ends, SIGKILL included), or when the command itself ends. Orphans of
the command become our children (PR_SET_CHILD_SUBREAPER), so that none is overlooked; should we be killed, the kernel
kills the command (PR_SET_PDEATHSIG). On our standard output: `started PID`, later `ended CODE`. Standard error is the
log.

Elsewhere than on Linux the two kernel services are missing: closing the pipe ends the command and its descendants.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import select
import signal
import subprocess
import sys
from collections.abc import Sequence

import psutil

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
LINUX = platform.system() == "Linux"
POLL_S = 0.2


def main(grace_s: float, command: Sequence[str]) -> int:
    for name in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(name, signal.SIG_IGN)  # whoever asked decides, through the pipe
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=2, start_new_session=True, preexec_fn=as_a_command
        )
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        say("ended 127")
        return 127
    say(f"started {child.pid}")
    wait_for_either(child.pid)
    if child.poll() is None:
        end(child, grace_s)
    # At once: whoever meets a broken connection asks for the reason, and helpers may take seconds to end.
    say(f"ended {child.returncode}")
    end_descendants()
    return 0


def as_a_command() -> None:
    """In the child, before the command takes its place."""
    for name in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(name, signal.SIG_DFL)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def prctl(option: int, value: int) -> None:
    if LINUX:
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def wait_for_either(pid: int) -> None:
    """Until the pipe is closed (nothing is ever written into it) or the command has ended."""
    if LINUX:
        select.select([0, os.pidfd_open(pid)], [], [])
        return
    while not select.select([0], [], [], POLL_S)[0] and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        pass


def end(child: subprocess.Popen[bytes], grace_s: float) -> None:
    """Politely to the whole process group, then by force."""
    signal_group(child.pid, signal.SIGTERM)
    try:
        child.wait(grace_s)
    except subprocess.TimeoutExpired:
        signal_group(child.pid, signal.SIGKILL)
        child.wait()


def signal_group(group: int, signal_: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal_)


def end_descendants() -> None:
    """Kill what is left, orphans included, until nothing is."""
    me = psutil.Process()
    while left := me.children(recursive=True):
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=1)


def say(line: str) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody may be left to hear it
        os.write(1, line.encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
