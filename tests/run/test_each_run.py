"""A request that takes several runs: each is carried out, and none hides another."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from specgate.errors import ExitCode
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
