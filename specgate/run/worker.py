"""Run the engine in a process of its own and drive it over a pipe.

If the engine crashes, is killed for lack of memory, or hangs, only the block that was running is lost: the parent sees
the process end or the time limit pass, and raises WorkerLost with the reason. What the engine prints goes to a log
file.
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
from specgate.api import Activity, Decoded, Engine, OpenRequest, ScriptedTrace, Text
from specgate.core import Budget, EngineFacts, Role, Score
from specgate.errors import BackendError, SpecgateError, WorkerLost
from specgate.run import profiler

_TAIL_LINES = 8
_CLOSING_S = 2.0
_CLOSING_IDLE_S = 30.0
"""Seconds to wait for the process to end: `_CLOSING_IDLE_S` if it has answered every call, since an engine may have to
stop a server that it started; `_CLOSING_S` if an answer is still due.
"""


class EngineWorker:
    """An `api.Engine` whose calls run in a spawned process.

    A call raises WorkerLost if it has no answer within `timeout_s` seconds, or if the process ends.
    """

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
        """Decode one block under the harness's own profiler; see `profiler.trace`."""
        seen: tuple[Decoded, Activity] = self._call("trace", role, budget)
        return seen

    def decode(self, role: Role, budget: Budget, stop_token_ids: Sequence[int]) -> Decoded:
        decoded: Decoded = self._call("decode", role, budget, stop_token_ids)
        return decoded

    def top2(self, slot: int, continuation: Sequence[int]) -> tuple[float, float] | None:
        logits: tuple[float, float] | None = self._call("top2", slot, continuation)
        return logits

    def extend(self, steps: int) -> Text | None:
        """As `api.ExtendsText.extend`; None where the engine cannot."""
        text: Text | None = self._call("extend", steps)
        return text

    def logits(self, role: Role, positions: Sequence[int]) -> tuple[tuple[tuple[int, str], ...], ...] | None:
        """As `api.ShowsLogits.logits`; None where the engine does not show its logits."""
        shown: tuple[tuple[tuple[int, str], ...], ...] | None = self._call("logits", role, positions)
        return shown

    def score(
        self, prompt: Sequence[int], continuation: Sequence[int], positions: Sequence[int]
    ) -> tuple[Score, ...] | None:
        """As `api.ScoresTokens.score`; None where the engine scores no tokens."""
        scores: tuple[Score, ...] | None = self._call("score", prompt, continuation, positions)
        return scores

    def close(self) -> None:
        """Ask the process to end, and kill it if it does not.

        A process that still owes an answer is busy and may not read the request, so it is given less time.
        """
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
    """The main function of the child: open the engine, then answer calls until None arrives or the parent ends."""
    for name in (signal.SIGINT, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)  # the parent handles Ctrl-C: it saves, then closes this process
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
    """Call a method of the engine. `trace` is done by the harness's profiler, except for an engine with scripted
    traces, which has no kernels that a profiler could see.
    """
    if method == "trace" and not isinstance(engine, ScriptedTrace):
        return profiler.trace(engine, *args)
    if method in ("extend", "logits", "score") and not hasattr(engine, method):
        return None
    return getattr(engine, method)(*args, **kwargs)


def _end_with_parent() -> None:
    """End this process when the parent ends.

    A parent that is killed with SIGKILL cannot close its child, and an engine that hangs in a call never reads the
    pipe.
    """
    parent = mp.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _redirect_output(log: Path) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)


def _portable(error: BaseException, method: str) -> SpecgateError:
    """The error to send over the pipe. A SpecgateError is sent as it is; any other becomes a BackendError, and its
    traceback is written to the log.
    """
    if isinstance(error, SpecgateError):
        return error
    traceback.print_exception(error)
    sys.stderr.flush()
    return BackendError(
        f"engine failed in {method}: {type(error).__name__}: {error}", hint="its traceback is in the worker's log"
    )
