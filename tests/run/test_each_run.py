"""A request that takes several runs: each is carried out, and none hides another."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from specgate.errors import ExitCode
from specgate.planning.request import Request
from specgate.promotion.ledger import Ledger
from specgate.run import session
from specgate.selftest.demo import ENGINES, request_of

pytestmark = pytest.mark.slow("measures")


@pytest.mark.usefixtures("no_processes")
def test_every_run_is_carried_out_and_the_first_code_that_is_not_green_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    honest, wrong = (replace(request_of(engine, tmp_path), reports=False) for engine in ENGINES)
    monkeypatch.setattr(session, "runs_of", lambda request, size: [wrong, honest])
    assert session.carry_out_each(honest) is ExitCode.INVALID
    states = [entry.state.value for entry in Ledger(tmp_path).read().entries]
    assert states == ["INVALID", "PASS"] and "verdict PASS (exit 0)" in capsys.readouterr().out


def test_no_run_follows_one_that_was_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs, began = [request_of(engine, tmp_path) for engine in ENGINES], list[Request]()

    def interrupted(each: Request) -> ExitCode:
        began.append(each)
        return ExitCode.INTERRUPTED

    monkeypatch.setattr(session, "runs_of", lambda request, size: runs)
    monkeypatch.setattr(session, "carry_out", interrupted)
    assert session.carry_out_each(runs[1]) is ExitCode.INTERRUPTED
    assert began == runs[:1]
