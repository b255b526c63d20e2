"""Annotations: an error per required verdict that is not green, at most ten of a kind, each one line."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specgate.contract import Run, State, Verdict
from specgate.reports.texts.annotations import KEPT, REPORT
from tests.support.factories import POLICY, blocks_of, judged, plan_of, run_of
from tests.support.hostile import STRINGS, with_text

PLAN = plan_of()
GREEN = judged(run_of(PLAN, blocks_of(PLAN)), POLICY)


def with_verdicts(state: State, *, required: bool, count: int = 1) -> Run:
    added = [
        Verdict(f"r{n}", "g", PLAN.cells[1].key, state, required, "code", "because so", {}, "do that")
        for n in range(count)
    ]
    return replace(GREEN, verdicts=(*GREEN.verdicts, *added))


def levels(run: Run) -> list[str]:
    return [line.split(" ")[0].strip(":") for line in REPORT.render(run, POLICY).splitlines()]


def test_a_green_run_is_one_notice() -> None:
    (line,) = REPORT.render(GREEN, POLICY).splitlines()
    assert line.startswith("::notice title=specgate micro%3A PASS::All ") and GREEN.id in line


@pytest.mark.parametrize(
    ("state", "required", "level"),
    [
        (State.FAIL, True, "error"),
        (State.INVALID, True, "error"),
        (State.ENV_REJECTED, True, "error"),
        (State.INCONCLUSIVE, True, "warning"),
        (State.FAIL, False, "warning"),
    ],
)
def test_each_state_has_its_level(state: State, required: bool, level: str) -> None:
    assert levels(with_verdicts(state, required=required)) == ["notice", level]


def test_more_than_github_keeps_are_counted_by_the_last() -> None:
    lines = REPORT.render(with_verdicts(State.FAIL, required=True, count=25), POLICY).splitlines()[1:]
    assert len(lines) == KEPT and "16 further ones" in lines[-1]


def test_what_cut_a_run_short_is_an_error() -> None:
    assert "error" in levels(replace(GREEN, failures={"run": "disk full"}))


@pytest.mark.parametrize("text", STRINGS)
def test_hostile_text_adds_no_command(text: str) -> None:
    run = with_text(with_verdicts(State.FAIL, required=True), text)
    shown = REPORT.render(run, POLICY)
    assert levels(run) == ["notice", "error", "error"]
    shown.encode()
