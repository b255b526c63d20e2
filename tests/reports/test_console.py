"""What a terminal and a log show: the verdict last, nothing wider than the terminal, nothing but text in a log."""

from __future__ import annotations

import re

import pytest

from specgate.core import Run
from specgate.reports.console import PLAIN, REPORT, WIDTH
from tests.factories import POLICY, blocks_of, corrupt, judged, margins_of, plan_of, run_of, scenario

ANSI = re.compile(r"\x1b\[[0-9;]*m")


def sample(*, broken: bool = False) -> Run:
    plan = plan_of(scenario(spec=(2, 3), batch=(2,)))
    blocks = blocks_of(plan, change=lambda b: corrupt(b) if broken else b)
    return judged(run_of(plan, blocks), POLICY)


@pytest.mark.parametrize("broken", [False, True])
def test_no_line_is_wider_than_the_terminal(broken: bool) -> None:
    assert max(len(line) for line in ANSI.sub("", REPORT.render(sample(broken=broken), POLICY)).splitlines()) <= WIDTH


@pytest.mark.parametrize("report", [REPORT, PLAIN])
def test_the_verdict_comes_after_the_tables_with_its_reason(report: object) -> None:
    shown = ANSI.sub("", (REPORT if report is REPORT else PLAIN).render(sample(broken=True), POLICY))
    tail = " ".join(shown[shown.rindex("INVALID:") :].split())
    assert tail.startswith("INVALID: tokens-equal on demo-64 c64 b2 spec-2: 8 sequences leave the baseline")
    assert tail.endswith("acceptance is real (pair demo)")


def test_a_log_gets_one_line_per_cell_and_verdict_and_no_escape_codes() -> None:
    run = sample()
    lines = PLAIN.render(run, POLICY).splitlines()
    assert not any("\x1b" in line for line in lines)
    assert sum(line.startswith("cell ") for line in lines) == len(run.cells)
    assert sum(line.startswith("PASS") for line in lines) == len(run.verdicts) + 1
    assert any("acceptance length 2.83" in line and "tokens all equal" in line for line in lines)


def test_green_verdicts_of_one_rule_share_a_line_but_near_ties_are_told_apart() -> None:
    plan = plan_of(scenario(spec=(2, 3)))
    blocks = blocks_of(plan, change=lambda b: corrupt(b) if b.role.k == 2 else b)
    shown = ANSI.sub("", REPORT.render(judged(run_of(plan, blocks, margins=margins_of(blocks, 1e-4)), POLICY), POLICY))
    assert "3 cells: complete" in shown
    assert "8 near ties" in shown


def test_withheld_speed_says_why() -> None:
    shown = " ".join(ANSI.sub("", REPORT.render(sample(broken=True), POLICY)).split())
    assert "token" in shown and "mismatch" in shown
    assert "speed-up –" in PLAIN.render(sample(broken=True), POLICY)
