"""The progress of a run on a terminal."""

from __future__ import annotations

import re

import pytest

from specgate.run.progress import progress
from tests.support.factories import blocks_of, plan_of, scenario


def test_in_80_columns_the_counts_and_the_times_stay_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"COLUMNS": "80", "FORCE_COLOR": "1", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    one = scenario(name="own-" + "questions-" * 6)
    plan = plan_of(one)
    with progress(False, {one.name: one}) as show:
        show(blocks_of(plan)[0], 123, 384)
    drawn = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().out)
    assert re.search(r"123/384 0:00:\d\d left -:--:--", drawn) and "…" not in drawn
