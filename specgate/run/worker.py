"""The engine in a process of its own, driven over a pipe.

A CUDA fault, an out-of-memory kill or a hang costs the blocks in flight and nothing else: the parent sees the
process end or the answer stay away, and raises WorkerLost with the reason. What the engine prints goes to a log file.
"""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import os
import signal
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from specgate import plugins
from specgate.api import Activity, Decoded, Engine, OpenRequest, ScriptedTrace
from specgate.core import Budget, EngineFacts, Role
from specgate.errors import BackendError, SpecgateError, WorkerLost
from specgate.run import profiler

_TAIL_LINES = 8
_CLOSING_S = 2.0
_CLOSING_IDLE_S = 30.0
"""A server that the engine has started may take its time to end."""


class EngineWorker:
    """An `api.Engine` whose calls run in a spawned process; every call raises WorkerLost after `timeout_s` seconds."""

    def __init__(self, backend: str, request: OpenRequest, timeout_s: float, log: Path) -> None:
        context = mp.get_context("spawn")
        self.timeout_s, self.log = timeout_s, log
        self._owing = True
        self._conn, child = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(child, backend, request, log), name="specgate-engine", daemon=True
        )
        self._process.start()
        child.close()
        try:
            self._facts: EngineFacts = self._answer("open")
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def facts(self) -> EngineFacts:
        return self._facts

    def prefill(self, prompts: Sequence[Sequence[int]], *, draft: bool) -> int:
        elapsed: int = self._call("prefill", prompts, draft=draft)
        return elapsed

    def trace(self, role: Role, budget: Budget) -> tuple[Decoded, Activity]:
        """Decode one block under a profiler that the engine does not control; see `profiler.trace`."""
        seen: tuple[Decoded, Activity] = self._call("trace", role, budget)
        return seen

    def decode(self, role: Role, budget: Budget, stop_token_ids: Sequence[int]) -> Decoded:
        decoded: Decoded = self._call("decode", role, budget, stop_token_ids)
        return decoded

    def top2(self, slot: int, continuation: Sequence[int]) -> tuple[float, float] | None:
        logits: tuple[float, float] | None = self._call("top2", slot, continuation)
        return logits

    def close(self) -> None:
        """End the process: politely, then by force. One that owes an answer does not hear us, and is not waited for."""
        if self._process.is_alive():
            with contextlib.suppress(OSError):
                self._conn.send(None)
            self._process.join(_CLOSING_S if self._owing else _CLOSING_IDLE_S)
        if self._process.is_alive():
            self._process.kill()
        self._process.join()
        self._conn.close()

    def _call(self, method: str, *args: object, **kwargs: object) -> Any:
        self._owing = True
        try:
            self._conn.send((method, args, kwargs))
        except OSError:
            raise self._lost(method) from None
        return self._answer(method)

    def _answer(self, method: str) -> Any:
        ready = wait([self._conn, self._process.sentinel], self.timeout_s)
        if not ready:
            self._process.kill()
            raise WorkerLost(
                f"engine process {self.pid}: no answer to {method} within {self.timeout_s:g} s; it was ended",
                hint=f"raise the scenario's timeout_s, or see {self.log}",
            )
        try:
            failed, value = self._conn.recv()
        except (EOFError, OSError):
            raise self._lost(method) from None
        self._owing = False
        if failed:
            raise value
        return value

    def _lost(self, method: str) -> WorkerLost:
        self._process.join(5)
        code = self._process.exitcode
        how = f"ended with exit code {code}"
        if code is not None and code < 0:
            how = f"was ended by {signal.Signals(-code).name}" + (" (out of memory, or by hand)" if code == -9 else "")
        return WorkerLost(f"engine process {self.pid} {how} during {method}", hint=_log_tail(self.log))


def _log_tail(log: Path) -> str | None:
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return None
    return f"last lines of {log}:\n    " + "\n    ".join(lines[-_TAIL_LINES:]) if lines else None


def _serve(conn: Connection, backend: str, request: OpenRequest, log: Path) -> None:
    """The child's life: open the engine, then answer calls until None or the parent's end."""
    for name in (signal.SIGINT, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)  # Ctrl-C is the parent's to handle: it closes us after saving
    _redirect_output(log)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        engine = plugins.backend(backend).open(request)
        conn.send((False, engine.facts()))
    except BaseException as error:
        conn.send((True, _portable(error, "open")))
        return
    while True:
        try:
            call = conn.recv()
        except EOFError:
            call = None
        if call is None:
            engine.close()
            return
        method, args, kwargs = call
        try:
            answer = (False, _carry_out(engine, method, args, kwargs))
        except BaseException as error:
            answer = (True, _portable(error, method))
        conn.send(answer)


def _carry_out(engine: Engine, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> object:
    """A call of the engine, but for `trace`: looking is the harness's, unless there is nothing to look at."""
    if method == "trace" and not isinstance(engine, ScriptedTrace):
        return profiler.trace(engine, *args)
    return getattr(engine, method)(*args, **kwargs)


def _end_with_parent() -> None:
    """A parent killed with -9 cannot close us, and an engine that hangs in a call never reads the pipe again."""
    parent = mp.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _redirect_output(log: Path) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)


def _portable(error: BaseException, method: str) -> SpecgateError:
    """Errors of ours cross the pipe as they are; any other becomes a BackendError, its traceback in the log."""
    if isinstance(error, SpecgateError):
        return error
    traceback.print_exception(error)
    sys.stderr.flush()
    return BackendError(
        f"engine failed in {method}: {type(error).__name__}: {error}", hint="its traceback is in the worker's log"
    )
