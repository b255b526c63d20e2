"""A process that drives a library: started, asked, watched, ended."""

from __future__ import annotations

import json
import os
import select
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from specgate.backends.offline.library import Library, Opening
from specgate.backends.offline.options import OfflineOptions, interpreter
from specgate.backends.servers.exchange import Json
from specgate.backends.servers.failures import COMMON, Failure, cause, diagnosis, explain, read_end
from specgate.backends.servers.process import Command, ServerProcess, shown
from specgate.contract.protocols import masked
from specgate.errors import BackendError

DRIVER: Final = Path(__file__).parent / "driver" / "main.py"
LONGEST_LINE: Final = 64 << 20
"""Bytes of an answer. A block of 64 requests with 8,192 tokens each has some 10 MB."""
PIECE: Final = 1 << 20
POLL_S: Final = 0.2
DYING_S: Final = 3.0
"""How long it may take, after the socket was closed, until the process is seen to have ended."""
NOT_INSTALLED: Final = Failure(
    r"No module named|ModuleNotFoundError",
    "the engine's Python lacks a module: -o python=/path/to/its/venv/bin/python, or -o pythonpath=FOLDER",
)


class Driven:
    """A library in a process of its own, opened for one role. All that goes wrong raises BackendError, with its cause
    where it is known.

    `facts`: what the driver said of the opened engine.
    """

    def __init__(self, library: Library, opening: Opening, folder: Path) -> None:
        self.role = opening.role
        self.where = f"{library.name} {opening.role}"
        self.limits = opening.options.common
        self.log = folder / f"{library.name}-{opening.role}.log"
        self.log_start = self.log.stat().st_size if self.log.exists() else 0
        self.known = (NOT_INSTALLED, *library.adapter.failures, *COMMON)
        self.received = bytearray()
        self.deadline = 0.0
        """When an answer must have come, unless a sign of life puts it off. Monotonic seconds."""
        python, arguments = interpreter(opening.options.python), library.opening(opening)
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(self.limits.stall_s)  # of sending; nothing is received before it is there
        command = command_of(library, opening.options, python, theirs.fileno())
        print(f"starting: {shown(command.argv)}\n{self.where}: {json.dumps(arguments)}", flush=True)
        with theirs:
            self.process = ServerProcess(command, self.log, self.limits.stop_s, inherited_fds=(theirs.fileno(),))
        try:
            self.facts = answered(self.ask("open", arguments, opens=True), f"{self.where}: open")
            self.refuse_silent_failures(opening)
        except BaseException:
            self.stop()
            raise

    def ask(self, call: str, arguments: Mapping[str, object], *, opens: bool = False) -> object:
        """Call a method of the driver; return what it returns. Raises BackendError where the engine raises, ends, hangs
        or answers with anything else. `opens`: it may take `start_s`, and nothing need come meanwhile.
        """
        began = self.log.stat().st_size if self.log.exists() else 0
        with self.explained(began):
            try:
                self.socket.sendall(json.dumps({"do": call, **arguments}).encode() + b"\n")
            except OSError as error:
                raise BackendError(f"{self.where}: {call}: its process takes no request: {error}") from error
            limit_s = self.limits.start_s if opens else self.limits.stall_s
            return self.answer(call, limit_s, opens)

    def answer(self, call: str, limit_s: float, opens: bool) -> object:
        """Wait for the answer to `call`. Signs of life that show progress put the end of `limit_s` off, unless it
        `opens`.
        """
        self.deadline, progress = time.monotonic() + limit_s, None
        for message in self.messages(call):
            if "alive" in message:
                if message["alive"] != progress and not opens:
                    self.deadline, progress = time.monotonic() + limit_s, message["alive"]
            elif "ok" in message:
                return message["ok"]
            elif isinstance(error := message.get("error"), dict):
                failure = masked(f"{error.get('type')}: {error.get('message')}")
                raise BackendError(f"{self.where}: {call}: {failure}")
            else:
                raise BackendError(f"{self.where}: {call}: malformed answer: {masked(str(message))[:160]}")
        raise BackendError(f"{self.where}: {call}: its process ended, or closed the connection, without an answer")

    def messages(self, call: str) -> Iterator[Json]:
        """Yield the driver's messages until it closes the connection. Raises BackendError past the deadline."""
        while True:
            searched = 0
            while (end := self.received.find(b"\n", searched)) < 0:
                searched = len(self.received)
                if len(self.received) > LONGEST_LINE:
                    raise BackendError(f"{self.where}: {call}: an answer of more than {LONGEST_LINE >> 20} MiB")
                if not select.select([self.socket], [], [], POLL_S)[0]:
                    if time.monotonic() > self.deadline:
                        raise BackendError(
                            f"{self.where}: {call}: no progress in time: it hangs, or needs longer",
                            hint="-o stall_s=SECONDS waits longer; -o start_s=SECONDS for loading",
                        )
                    continue
                try:
                    piece = self.socket.recv(PIECE)
                except OSError:
                    piece = b""
                if not piece:
                    return
                self.received += piece
            line = bytes(self.received[:end])
            del self.received[: end + 1]
            yield object_of(line, f"{self.where}: {call}")

    def refuse_silent_failures(self, opening: Opening) -> None:
        """Raise BackendError where the log says that the engine goes on without its draft."""
        silent = [failure for failure in self.known if failure.silent] if opening.role.speculative else []
        for failure, line in explain(read_end(self.log, self.log_start), silent):
            raise BackendError(f"{self.where}: {failure.cause}", hint=f"{line}\n  log: {self.log}")

    @contextmanager
    def explained(self, began: int) -> Iterator[None]:
        """Add the cause from the log to a BackendError. The log often knows more than an exception."""
        try:
            yield
        except BackendError as error:
            code = self.ended_by_now()
            if code is not None:
                how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
                why = diagnosis(self.log, self.log_start, self.known)
                raise BackendError(f"{self.where}: its process {how} ({error.message})", hint=why) from error
            if error.hint is None and (reason := cause(read_end(self.log, began), self.known)) is not None:
                raise BackendError(error.message, hint=f"{reason}\n  log: {self.log}") from error
            raise

    def ended_by_now(self) -> int | None:
        """The exit code of the process, if its end of the socket is closed."""
        if not closed(self.socket):
            return self.process.ended
        deadline = time.monotonic() + DYING_S
        while self.process.ended is None and time.monotonic() < deadline:
            time.sleep(POLL_S / 10)
        return self.process.ended

    def ask_to_stop(self) -> None:
        self.process.ask_to_stop()

    def stop(self) -> None:
        """End the process and all that it has started."""
        self.process.stop()
        self.socket.close()


def closed(connection: socket.socket) -> bool:
    """True if the other end is closed and all of its data has been read."""
    try:
        return bool(select.select([connection], [], [], 0)[0]) and not connection.recv(1, socket.MSG_PEEK)
    except OSError:
        return True


def command_of(library: Library, options: OfflineOptions, python: str, descriptor: int) -> Command:
    """The driver's command line, and what it needs in the environment."""
    env = {name: value for name, value in library.environment.items() if name not in os.environ}
    if options.pythonpath:
        env["PYTHONPATH"] = os.pathsep.join((*options.pythonpath, *filter(None, [os.environ.get("PYTHONPATH")])))
    argv = (python, str(DRIVER), library.module, str(descriptor))
    return Command(argv, {**env, **options.env})


def object_of(line: bytes, where: str) -> Json:
    """A line as a JSON object. Raises BackendError."""
    try:
        parsed = json.loads(line)
    except ValueError as error:
        raise BackendError(f"{where}: malformed answer: {error}: {masked(repr(line[:80]))}") from error
    if not isinstance(parsed, dict):
        raise BackendError(f"{where}: malformed answer: no object: {masked(repr(line[:80]))}")
    return parsed


def answered(answer: object, where: str) -> Json:
    """An answer that must be an object. Raises BackendError."""
    if not isinstance(answer, dict):
        raise BackendError(f"{where}: malformed answer: {masked(str(answer))[:160]}: an object is needed")
    return answer
