"""The annotation of a run: one line, whose level follows from the exit code."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specgate.contract import State, Verdict
from specgate.reports.texts.annotations import REPORT
from tests.support.factories import POLICY, blocks_of, judged, plan_of, run_of
from tests.support.hostile import STRINGS, with_text

PLAN = plan_of()
GREEN = judged(run_of(PLAN, blocks_of(PLAN)), POLICY)


def test_a_green_run_is_one_notice() -> None:
    (line,) = REPORT.render(GREEN, POLICY).splitlines()
    assert line.startswith("::notice title=specgate micro%3A PASS::All ") and GREEN.id in line


@pytest.mark.parametrize(("state", "level"), [(State.FAIL, "error"), (State.INCONCLUSIVE, "warning")])
@pytest.mark.parametrize("text", STRINGS)
def test_a_red_run_is_one_line_of_its_level_whatever_it_says(state: State, level: str, text: str) -> None:
    red = Verdict("r", "g", PLAN.cells[1].key, state, True, "code", text, {}, "do that")
    run = with_text(replace(GREEN, verdicts=(*GREEN.verdicts, red)), text)
    assert [line.split(" ")[0] for line in REPORT.render(run, POLICY).splitlines()] in ([f"::{level}"], ["::error"])
