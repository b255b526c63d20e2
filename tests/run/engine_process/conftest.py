"""Engines that lie, in this process or in one of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from specgate import plugins
from specgate.contract import PairRef
from specgate.contract.protocols import OpenRequest
from specgate.run.engine_process.client import EngineCalls
from specgate.run.worker import EngineWorker
from tests.support.engines.lying import install
from tests.support.in_process import EngineHere

Opened = Callable[..., AbstractContextManager[EngineCalls]]
OpenedApart = Callable[..., AbstractContextManager[EngineWorker]]


@pytest.fixture
def lying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The back end `lying` is installed."""
    install(tmp_path / "installed")
    monkeypatch.delenv("SPECGATE_LOAD_PLUGINS", raising=False)
    monkeypatch.syspath_prepend(tmp_path / "installed")
    plugins.registered.cache_clear()
    yield
    plugins.registered.cache_clear()


@pytest.fixture
def here(lying: None, tmp_path: Path) -> Opened:
    """Open a lying engine in this process."""

    @contextmanager
    def opened(**lies: str) -> Iterator[EngineHere]:
        engine = EngineHere("lying", request_in(tmp_path, lies), 60, tmp_path / "worker.log")
        try:
            yield engine
        finally:
            engine.close()

    return opened


@pytest.fixture
def apart(lying: None, tmp_path: Path) -> OpenedApart:
    """Open a lying engine in a process of its own; its log is RUN/logs/worker-0.log."""

    @contextmanager
    def opened(timeout_s: float = 60, **lies: str) -> Iterator[EngineWorker]:
        (logs := tmp_path / "run" / "logs").mkdir(parents=True, exist_ok=True)
        worker = EngineWorker("lying", request_in(logs, lies), timeout_s, logs / "worker-0.log")
        try:
            yield worker
        finally:
            worker.close()

    return opened


def request_in(folder: Path, lies: dict[str, str]) -> OpenRequest:
    pair = PairRef("fake", Path("/nowhere/target"), None)
    return OpenRequest(pair, "float32", 2, 256, 3, perf_mode=False, options=lies, logs=folder)
