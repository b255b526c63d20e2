"""Run the engine in a process of its own and drive it over a socket.

If the engine crashes, is killed for lack of memory, hangs, or sends what nobody can read, only the block that was
running is lost: the harness sees the process end or the time limit pass, and raises WorkerLost or BackendError with the
reason.

The process gets arguments, a socket, a pipe to print into, a folder for logs and a part of the environment. With
`--isolate` it runs in a sandbox (`specgate.sandbox`) that hides the run folder and all other processes.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
from dataclasses import replace
from pathlib import Path

from specgate import plugins
from specgate.contract.protocols import DrivesAnotherEngine, OpenRequest
from specgate.errors import BackendError, EnvironmentRefused, OtherCode, SpecgateError, WorkerLost
from specgate.redaction import cleaned
from specgate.run.engine_process import start
from specgate.run.engine_process.blocks import Close
from specgate.run.engine_process.client import EngineCalls
from specgate.run.engine_process.frames import Closed, Deadline, Late, Unreadable, receive_within, send_within
from specgate.run.engine_process.launch import AS_THE_HARNESS, Launch
from specgate.run.engine_process.logs import Log, Printed, Scratch
from specgate.run.engine_process.wire import MOST_BYTES, request_message
from specgate.sandbox.box import Box
from specgate.sandbox.isolation import current

_TAIL_LINES = 8
_CLOSING_S = 2.0
_CLOSING_IDLE_S = 30.0
"""Seconds to wait for the process to end: `_CLOSING_IDLE_S` if it has answered every call, since an engine may have to
stop a server that it started; `_CLOSING_S` if an answer is still due.
"""
_BY_SIGNAL = 128
"""A shell's exit code for a process that signal N has ended is this number and N."""
_DYING_S = 5.0
"""Seconds that a process may take to end after it has closed its socket."""


class EngineWorker(EngineCalls):
    """An `protocols.Engine` whose calls run in a process of its own.

    A call raises WorkerLost if it has no answer within `timeout_s` seconds, or if the process ends. What the process
    prints goes to the file `log`; what its programs write goes to the folder `request.logs`. `launch` says which
    interpreter and which code it runs, by default the harness's.
    """

    def __init__(
        self, backend: str, request: OpenRequest, timeout_s: float, log: Path, launch: Launch = AS_THE_HARNESS
    ) -> None:
        super().__init__(backend)
        self.timeout_s, self.log, self._launch = timeout_s, log, launch
        self._owing = True
        self._scratch = Scratch(request.logs) if request.logs is not None else None
        self._box = self._boxed(request)
        self._printed = Printed(Log(log, self._stored))
        try:
            self._connection, self._process = self._started(request)
        except BaseException:
            self._end_logs()
            raise
        try:
            self.open(replace(request, logs=self._scratch.folder) if self._scratch else request)
        except BaseException:
            self.close()
            raise
        if self._box is not None:
            self._box.watch(self._process)

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def close(self) -> None:
        """Ask the process to end, and kill it if it does not.

        A process that still owes an answer is busy and may not read the request, so it is given less time.
        """
        if self._process.poll() is None:
            limit_s = _CLOSING_S if self._owing else _CLOSING_IDLE_S
            with contextlib.suppress(Late, Closed):
                send_within(self._connection, request_message(0, Close()), self._deadline(_CLOSING_S))
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(limit_s)
        self._end()

    def _boxed(self, request: OpenRequest) -> Box | None:
        """The sandbox of the process; None without `--isolate`.

        It shares the machine's network only if the engine attaches to a program that runs already.
        """
        isolation = current()
        if isolation is None:
            return None
        pair, backend = request.pair, plugins.backend(self.backend)
        files = [Path(value).expanduser() for value in (*request.options.values(), str(Path.cwd()))]
        shown = [*self._launch.code, pair.target, *([pair.draft] if pair.draft else []), *files]
        network = isinstance(backend, DrivesAnotherEngine) and backend.attaches(request.options)
        return isolation.box(shown, [self._scratch.folder] if self._scratch else [], network=network)

    def _started(self, request: OpenRequest) -> tuple[socket.socket, subprocess.Popen[bytes]]:
        """The harness's end of the socket, and the process that has the other end as its standard input."""
        ours, theirs = socket.socketpair()
        command, environment = self._launch.command(), self._launch.environment(request.options)
        if self._box is not None:
            environment = self._box.environment(environment)
            command = self._box.command(command, Path.cwd())
        try:
            process = subprocess.Popen(
                command, stdin=theirs.fileno(), stdout=self._printed.pipe, stderr=self._printed.pipe, env=environment
            )
        except OSError as error:
            ours.close()
            raise EnvironmentRefused(f"the engine's process cannot be started: {error.strerror}") from error
        finally:
            theirs.close()
            self._printed.started()
        ours.setblocking(False)
        return ours, process

    # ── a call ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _exchange(self, call: str, message: bytes) -> bytes:
        self._owing = True
        deadline = self._deadline(self.timeout_s)
        if self._connection.fileno() < 0:
            raise self._lost(call)
        try:
            send_within(self._connection, message, deadline)
            answer = receive_within(self._connection, MOST_BYTES, deadline)
        except Late:
            self._end()
            raise WorkerLost(
                f"engine process {self.pid}: no answer to {call} within {self.timeout_s:g} s; it was ended",
                hint=f"raise the scenario's timeout_s, or see {self.log}",
            ) from None
        except Closed:
            raise self._lost(call) from None
        except Unreadable as why:
            self._end()
            message_ = f"back end {self.backend}: malformed answer to {call}: {why}; its process was ended"
            raise BackendError(message_, hint=f"see {self.log}") from None
        self._owing = False
        return answer

    def _reported(self, error: SpecgateError) -> SpecgateError:
        if self._scratch is None:
            return error
        self._scratch.copy()
        return type(error)(
            self._scratch.renamed(error.message), hint=self._scratch.renamed(error.hint) if error.hint else None
        )

    def _deadline(self, limit_s: float) -> Deadline:
        return Deadline(limit_s, lambda: self._process.poll() is None)

    def _lost(self, call: str) -> WorkerLost:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_DYING_S)
        code = self._process.poll()
        self._end()
        if code == start.OTHER_SOURCE:
            what = f"back end {self.backend}: its source was changed while the run went on"
            raise OtherCode(what, hint=_log_tail(self.log))
        if self._box is not None and code is not None and code > _BY_SIGNAL:
            code = _BY_SIGNAL - code  # the sandbox's own exit code for a process that a signal has ended
        if code is None:
            how = "closed its end of the socket and was ended"
        elif code < 0:
            how = f"was ended by {_name_of(-code)}" + (" (out of memory, or by hand)" if code == -9 else "")
        else:
            how = f"ended with exit code {code}"
        return WorkerLost(f"engine process {self.pid} {how} during {call}", hint=_log_tail(self.log))

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _end(self) -> None:
        """Kill the process if it still runs, and store what it has printed. Calling it again does nothing."""
        if self._box is not None:
            self._box.end(self._process)
        elif self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._connection.close()
        self._end_logs()

    def _end_logs(self) -> None:
        self._printed.end()
        if self._scratch is not None:
            self._scratch.end()

    def _stored(self, text: str) -> str:
        """Text as it is stored after it was printed."""
        return cleaned(self._scratch.renamed(text) if self._scratch else text)


def _name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _log_tail(log: Path) -> str | None:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    return f"last lines of {log}:\n    " + "\n    ".join(lines[-_TAIL_LINES:]) if lines else None
