"""A server process that was started here: its process group, its log, its end."""

from __future__ import annotations

import atexit
import contextlib
import os
import random
import select
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Final

from specgate.errors import BackendError

SUPERVISOR: Final = Path(__file__).with_name("supervisor.py")
HOST: Final = "127.0.0.1"
PORTS: Final = range(20_000, 32_768)
"""Below those that Linux gives to connections (32,768–60,999): none of them takes one before its server listens."""
CLAIMS: Final = 16
"""More than the servers that one process starts at once."""
_claims: deque[socket.socket] = deque()


@atexit.register
def _give_up_claims() -> None:
    while _claims:
        _claims.popleft().close()


@dataclass(frozen=True, slots=True)
class Command:
    """A command line, and the environment variables that it needs beside ours."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


class ServerProcess:
    """Runs `command` under a supervisor, which ends it when this process ends. Its output is appended to `log`.

    `kept`: file descriptors that the command inherits, under the same numbers.
    """

    def __init__(self, command: Command, log: Path, stop_s: float, inherited_fds: Sequence[int] = ()) -> None:
        self.command, self.log, self.stop_s = command, log, stop_s
        self._pid: int | None = None
        self._supervisor_output = b""
        with log.open("ab") as output:
            self._supervisor = subprocess.Popen(
                [sys.executable, "-I", str(SUPERVISOR), str(stop_s), ",".join(map(str, inherited_fds)), *command.argv],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env={**os.environ, **command.env},
                start_new_session=True,
                pass_fds=inherited_fds,
            )

    @property
    def pid(self) -> int | None:
        """The command's process id; None before it has started. It leads a process group of its own."""
        _ = self.ended
        return self._pid

    @property
    def ended(self) -> int | None:
        """The command's exit code, negative for a signal. None while it runs."""
        self._listen(0)
        for line in self._supervisor_output.decode().splitlines():
            word, _, number = line.partition(" ")
            if word == "started":
                self._pid = int(number)
            if word == "ended":
                return int(number)
        return self._supervisor.poll()

    def ask_to_stop(self) -> None:
        """Begin `stop` without waiting for it."""
        assert self._supervisor.stdin is not None
        self._supervisor.stdin.close()

    def stop(self) -> None:
        """End the command and everything that it started. Returns when nothing of it is left."""
        assert self._supervisor.stdout is not None
        self.ask_to_stop()
        try:
            self._supervisor.wait(self.stop_s + 10)
        except subprocess.TimeoutExpired:
            self._supervisor.kill()
            self._supervisor.wait()
        if self._supervisor.returncode < 0 and self.ended is not None and self._pid is not None:
            end_group(self._pid)
        self._supervisor.stdout.close()

    def _listen(self, wait_s: float) -> None:
        """Read what the supervisor has reported, waiting `wait_s` seconds at most."""
        stream = self._supervisor.stdout
        assert stream is not None
        while not stream.closed and select.select([stream], [], [], wait_s)[0]:
            piece = os.read(stream.fileno(), 4096)
            self._supervisor_output += piece
            if not piece:
                return


def end_group(group: int) -> None:
    """Kill what is left of a process group whose supervisor was killed.

    The kernel has then ended the command itself, but not its helpers.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def free_port() -> int:
    """A port of the loopback interface that nothing listens on, and that no other process of this machine got here.

    A server takes seconds to minutes until it listens. Until then the UDP port of the same number is held as a claim:
    the system gives it to one process only, and takes it back when that ends. The last CLAIMS ones are held. Raises
    BackendError where every port is in use.
    """
    first = random.SystemRandom().randrange(len(PORTS))
    for port in chain(PORTS[first:], PORTS[:first]):
        claim = socket.socket(type=socket.SOCK_DGRAM)
        try:
            claim.bind((HOST, port))
        except OSError:
            claim.close()
            continue
        if not is_free(port):
            claim.close()
            continue
        _claims.append(claim)
        if len(_claims) > CLAIMS:
            _claims.popleft().close()
        return port
    raise BackendError(
        f"every port of {HOST} from {PORTS[0]} to {PORTS[-1]} is in use", hint="-o port=PORT takes another one"
    )


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def wait_until_free(port: int, limit_s: float = 10) -> None:
    """Wait until a port is free again after its server was ended. Raises BackendError after `limit_s` seconds."""
    deadline = time.monotonic() + limit_s
    while not is_free(port):
        if time.monotonic() > deadline:
            raise BackendError(f"port {port} is still in use {limit_s:g} s after its server was ended")
        time.sleep(0.05)


def shown(argv: Sequence[str]) -> str:
    return " ".join(argv)
