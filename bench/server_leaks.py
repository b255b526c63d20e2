"""Start and stop a small real server a hundred times, and count the processes and ports that are left.

    python -m bench.server_leaks [--cycles 100]

A tenth of the servers is ended by kill -9 of the harness.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from specgate.backends.servers.process import ServerProcess, free_port, is_free, wait_until_free
from tests.backends.servers.helpers import ROOT, wait_for
from tests.backends.servers.test_process import HARNESS, alive, command, eventually

KILLED_EVERY = 10


def cycle(folder: Path, kill: bool) -> tuple[int, bool]:
    """(number of processes left, whether the port is still taken) after one start and end."""
    port, pids = free_port(), folder / "pids"
    if kill:
        arguments = [sys.executable, "-c", HARNESS, str(folder / "log"), *command(port, pids).argv]
        with subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE) as harness:
            wait_for(port)
            harness.kill()
        eventually(lambda: not alive(pids) and is_free(port))
    else:
        process = ServerProcess(command(port, pids), folder / "log", stop_s=1)
        wait_for(port)
        process.stop()
        wait_until_free(port)
    return len(alive(pids)), not is_free(port)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=100)
    cycles = parser.parse_args().cycles
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        found = [cycle(Path(folder), kill=n % KILLED_EVERY == 0) for n in range(cycles)]
    killed = -(-cycles // KILLED_EVERY)
    print(f"{cycles} cycles, {killed} of them ended by kill -9 of the harness, in {time.monotonic() - began:.0f} s")
    print(f"left: {sum(n for n, _ in found)} processes, {sum(taken for _, taken in found)} ports")


if __name__ == "__main__":
    main()
