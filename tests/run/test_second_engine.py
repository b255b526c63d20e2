"""A second engine that fails is asked once more, in a new process; one that cannot score is not."""

from __future__ import annotations

from typing import cast

import pytest

from specgate.errors import BackendError, CheckpointError, EnvironmentRefused, SpecgateError, UsageError, WorkerLost
from specgate.run.second_engine import SecondEngine, failed
from specgate.run.worker import EngineWorker


class Process:
    def facts(self) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("kind", "again"),
    [
        (WorkerLost, True),
        (BackendError, True),
        (CheckpointError, False),
        (UsageError, False),
        (EnvironmentRefused, False),
    ],
)
def test_an_engine_that_fails_is_asked_again_and_one_that_cannot_score_is_not(
    kind: type[SpecgateError], again: bool
) -> None:
    started: list[Process] = []

    def start() -> EngineWorker:
        started.append(Process())
        return cast(EngineWorker, started[-1])

    def question(worker: EngineWorker) -> int:
        if worker is started[0]:  # type: ignore[comparison-overlap]
            raise kind("no")
        return 7

    assert failed(kind("no")) is again
    engine = SecondEngine(start)
    if again:
        assert engine.ask(question) == 7 and len(started) == 2
        return
    with pytest.raises(kind):
        engine.ask(question)
    assert len(started) == 1
