"""A program of its own: run a command, and leave nothing of it running, whatever happens to the process that asked.

    python -I supervisor.py GRACE_S KEPT COMMAND…

KEPT are the numbers of open file descriptors that the command inherits, separated by commas; none where it is empty.

The command runs in a session of its own. The command and everything that it started are ended when it ends by itself,
or when the pipe on our standard input closes. That pipe closes however the asking process ends, SIGKILL included.

Orphans of the command become our children (PR_SET_CHILD_SUBREAPER), so that none is missed. If we are killed, the
kernel kills the command (PR_SET_PDEATHSIG). These two services exist only on Linux. Elsewhere, closing the pipe still
ends the command and its descendants.

Standard output gets `started PID` and later `ended CODE`. Standard error is the log.
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


def main(grace_s: float, inherited_fds: Sequence[int], command: Sequence[str]) -> int:
    for name in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(name, signal.SIG_IGN)  # the asking process decides, through the pipe
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=2,
            start_new_session=True,
            preexec_fn=as_a_command,
            pass_fds=inherited_fds,
        )
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        say("ended 127")
        return 127
    for number in inherited_fds:
        os.close(number)  # what the command holds alone is closed when it ends
    say(f"started {child.pid}")
    wait_for_either(child.pid)
    if child.poll() is None:
        end(child, grace_s)
    # Report first: a client with a broken connection asks for the reason, and ending the helpers may take seconds.
    say(f"ended {child.returncode}")
    end_descendants()
    return 0


def as_a_command() -> None:
    """Runs in the child process, before the command replaces it."""
    for name in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(name, signal.SIG_DFL)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def prctl(option: int, value: int) -> None:
    if LINUX:
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def wait_for_either(pid: int) -> None:
    """Wait until the pipe is closed (nothing is ever written into it) or the command has ended."""
    if LINUX:
        select.select([0, os.pidfd_open(pid)], [], [])
        return
    while not select.select([0], [], [], POLL_S)[0] and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        pass


def end(child: subprocess.Popen[bytes], grace_s: float) -> None:
    """End the whole process group: by SIGTERM, and after `grace_s` seconds by SIGKILL."""
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
    """Kill all remaining descendants, orphans included, until none is left."""
    me = psutil.Process()
    while left := me.children(recursive=True):
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=1)


def say(line: str) -> None:
    with contextlib.suppress(BrokenPipeError):  # the asking process may be gone
        os.write(1, line.encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), [int(number) for number in sys.argv[2].split(",") if number], sys.argv[3:]))
