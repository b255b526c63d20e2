"""A run without processes of its own: the engine, the watch and the command line in the process that tests.

Nothing is made up but time around a scripted engine (`support.clocks.scripted_time`): the engine decodes, its calls
and answers are the messages of a worker, and the watch samples. What processes are for (a crash, a hang, a signal, a
pipe whose reader has gone) is tested with real ones, in `tests/run/test_worker.py`, `tests/machine/test_monitor.py` and
wherever `Cli.micro_apart` is called.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from specgate import plugins
from specgate.contract import Budget, Role
from specgate.contract.load import OfferedLoad
from specgate.contract.protocols import Decoded, OpenRequest
from specgate.machine.monitor import INTERVAL_S, Sampler, line_of
from specgate.run.engine_process.client import EngineCalls
from specgate.run.engine_process.launch import AS_THE_HARNESS, Launch
from specgate.run.engine_process.service import Service
from tests.support.clocks.scripted_time import TIME, Call

HARNESS_TIME = (
    "specgate.backends.fake.engine",
    "specgate.run.point_blocks",
    "specgate.run.runner",
    "specgate.run.drawing",
    "specgate.run.rescoring",
    "specgate.run.token_evidence",
    "specgate.ab.runner",
    "specgate.machine.monitor",
    "specgate.machine.cpu_counters",
)
"""Modules that read the clock of a run. All read the same one."""

DEADLY = ("die_after_blocks", "hang_after_blocks")
"""Options of the scripted engine that end or stop the process it is in."""


class EngineHere(EngineCalls):
    """A `worker.EngineWorker` whose engine is in this process. Its calls and answers are the same messages."""

    def __init__(
        self, backend: str, request: OpenRequest, timeout_s: float, log: Path, launch: Launch = AS_THE_HARNESS
    ) -> None:
        if launch.own:
            raise ValueError("other code than the tests' own: give this engine a process (run_apart)")
        if deadly := [name for name in DEADLY if name in request.options and log.name == "worker-0.log"]:
            raise ValueError(f"{deadly[0]} would end the tests: give this engine a process (micro_apart)")
        super().__init__(backend)
        self.log, self.pid = log, os.getpid()
        self._service = Service()
        self._time = TIME if backend == "fake" else None
        self.open(request)

    def prefill(self, prompts: Sequence[Sequence[int]], *, draft: bool) -> int:
        with self._calling() as call:
            call.said_ns = super().prefill(prompts, draft=draft)
        return call.said_ns

    def decode(self, role: Role, budget: Budget, stop_token_ids: Sequence[int]) -> Decoded:
        with self._calling() as call:
            decoded = super().decode(role, budget, stop_token_ids)
            call.said_ns = decoded.elapsed_ns
        return in_harness_time(decoded)

    def serve(
        self,
        role: Role,
        prompts: Sequence[Sequence[int]],
        budget: Budget,
        offered: OfferedLoad,
        stop_token_ids: Sequence[int],
    ) -> Decoded:
        with self._calling() as call:
            decoded = super().serve(role, prompts, budget, offered, stop_token_ids)
            call.said_ns = (decoded.prefill_ns or 0) + decoded.elapsed_ns
        return in_harness_time(decoded)

    def _calling(self) -> contextlib.AbstractContextManager[Call]:
        return self._time.calling() if self._time else contextlib.nullcontext(Call())

    def close(self) -> None:
        self._service.close()

    def _exchange(self, call: str, message: bytes) -> bytes:
        with self.log.open("a") as log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
            answer = self._service.answer(message)
        assert answer is not None
        return answer


def in_harness_time(decoded: Decoded) -> Decoded:
    """A block of an engine that reads the real clock, as its harness would have it."""
    return decoded if decoded.began_ns is None else replace(decoded, began_ns=TIME.here_ns(decoded.began_ns))


@contextlib.contextmanager
def watching_here(
    file: Path, generation: int, uuids: Sequence[str], interval_s: float = INTERVAL_S, ports: Sequence[int] = ()
) -> Iterator[None]:
    """As `monitor.watching`, in a thread."""
    sampler, ended = Sampler(generation, os.getpid(), uuids, ports), threading.Event()
    with file.open("ab") as out:

        def take() -> None:
            out.write(line_of(sampler.sample()).encode())
            out.flush()

        def sample() -> None:
            while not ended.wait(interval_s):
                take()

        take()
        thread = threading.Thread(target=sample)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            take()
            sampler.close()


def stay_here(patch: pytest.MonkeyPatch) -> None:
    """From now on, runs start no process."""
    patch.setattr("specgate.plugins.apart", lambda entry: plugins.backend_here(entry.name))
    patch.setattr("specgate.run.runner.EngineWorker", EngineHere)
    patch.setattr("specgate.run.second_engine.EngineWorker", EngineHere)
    patch.setattr("specgate.run.smoke.short_run.EngineWorker", EngineHere)
    patch.setattr("specgate.run.session.watching", watching_here)
    patch.setattr("specgate.ab.runner.EngineWorker", EngineHere)
    patch.setattr("specgate.ab.session.watching", watching_here)
    for module in HARNESS_TIME:
        patch.setattr(f"{module}.time", TIME)


def command(folder: Path, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run `specgate ARGUMENTS` in `folder`; return its output and exit code."""
    from specgate.cli import main

    streams = io.BytesIO(), io.BytesIO()
    out = io.TextIOWrapper(streams[0], encoding="utf-8", write_through=True)
    err = io.TextIOWrapper(streams[1], encoding="utf-8", errors="backslashreplace", write_through=True)  # as Python's
    code: object = 0
    with pytest.MonkeyPatch.context() as patch, handlers_kept():
        stay_here(patch)
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["specgate", *arguments])
        patch.setenv("NO_COLOR", "1")
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                main()
            except SystemExit as end:
                code = end.code
    printed, text = (stream.getvalue().decode() for stream in streams)
    return subprocess.CompletedProcess(["specgate", *arguments], int(cast(int, code or 0)), printed, text)


@contextlib.contextmanager
def handlers_kept() -> Iterator[None]:
    """`main` takes signals as a program does, and the tests go on after it."""
    before = {name: signal.getsignal(name) for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """A process that is started in here takes SIGINT, also where these tests were started with it ignored."""
    with handlers_kept():
        signal.signal(signal.SIGINT, signal.default_int_handler)
        yield
