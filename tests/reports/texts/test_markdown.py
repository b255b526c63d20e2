"""summary.md: at most 60 lines, the verdict first, the worst cells kept, and nothing but text from outside."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from specgate.contract import Promotion, Run, State, Verdict
from specgate.reports.texts.markdown import LINES, REPORT
from tests.support.factories import POLICY, blocks_of, judged, plan_of, run_of, scenario
from tests.support.hostile import STRINGS, with_text

PLAN = plan_of(scenario(spec=(2, 3)))
GREEN = judged(run_of(PLAN, blocks_of(PLAN)), POLICY)


def large() -> Run:
    """200 cells, each with a red verdict, and everything else that takes a line."""
    plan = plan_of(scenario(context=range(64, 84), batch=(1, 2), spec=(1, 2, 3, 4), prompt_sets=1, rounds=2, steps=2))
    run = run_of(plan, blocks_of(plan, steps=2), promotion=Promotion({}, 3, 0, "x", "in a hurry"))
    red = tuple(Verdict("r", "g", c.cell.key, State.FAIL, True, "code", "because so", {}, "do that") for c in run.cells)
    return replace(run, verdicts=red, warnings=tuple(f"warning {n}" for n in range(20)))


def test_the_verdict_its_reason_and_the_command_are_there() -> None:
    lines = REPORT.render(GREEN, POLICY).splitlines()
    assert lines[0].startswith("## ✓ PASS")
    assert (
        lines[2].startswith("Speculation pays in all 2 cells")
        and lines[4].startswith("All ")
        and lines[-2] == "specgate micro --scenario demo-64"
    )


def test_a_run_of_200_cells_stays_within_the_limit_and_counts_what_it_leaves_out() -> None:
    run = large()
    assert len(run.cells) == 200
    text = REPORT.render(run, POLICY)
    assert len(text.splitlines()) <= LINES
    assert "184 more cells" in text and "188 more verdicts" in text and "17 more in report.html" in text
    assert "ORDER OVERRIDDEN" in text.splitlines()[0]


def test_cells_with_a_red_verdict_are_shown_before_green_ones() -> None:
    run = large()
    last = run.cells[-1].cell.key
    run = replace(run, verdicts=tuple(v for v in run.verdicts if v.cell == last))
    first_row = next(line for line in REPORT.render(run, POLICY).splitlines() if "tokens · batch" in line)
    assert "83 tokens · batch 2 · spec-4" in first_row


@pytest.mark.parametrize("text", STRINGS)
def test_hostile_text_is_text(text: str) -> None:
    shown = REPORT.render(with_text(GREEN, text), POLICY)
    prose, _, command = shown.partition("```sh\n")
    assert not re.search(r"<|(?<!\\)\[|(?<!\\)`|@", prose)
    assert command.count("```") == 1 and len(command.splitlines()) == 2
    assert len(shown.splitlines()) <= LINES
    shown.encode()
