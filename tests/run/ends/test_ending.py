"""The last lines of a run: its rules counted, the command that comes next, and the verdict last."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from specgate.contract import Promotion, Run, State
from specgate.errors import ExitCode
from specgate.reports.common.summary import headline
from specgate.run.ending import MEASURE_ANEW, NOT_STORED, closing_lines
from specgate.run.recompute import ending
from tests.support.factories import POLICY, blocks_of, judged, plan_of, run_of, scenario

PLAN = plan_of(scenario(spec=(2, 3)))
GREEN = judged(run_of(PLAN, blocks_of(PLAN)), POLICY)
HERE = Path("runs/a b")


def last_lines(run: Run, code: ExitCode = ExitCode.PASS) -> list[str]:
    return list(closing_lines(run, HERE, (code.name, code)))


def test_rules_are_counted_and_the_verdict_is_the_last_line() -> None:
    first, folder, command, last = last_lines(GREEN)
    assert first == f"{len(POLICY.rules)} rules green: specgate runs show 'runs/a b' --all"
    assert (folder, last) == (f"run folder {HERE}", "verdict PASS (exit 0)")
    assert command == "next: specgate runs explain 'runs/a b'"


def test_a_rule_that_judges_nothing_was_not_asked_and_one_red_cell_makes_a_rule_not_green() -> None:
    skipped = [replace(v, rule="other", state=State.SKIPPED) for v in GREEN.verdicts[:1]]
    red = replace(GREEN.verdicts[0], state=State.FAIL)
    run = replace(GREEN, verdicts=(*GREEN.verdicts, *skipped, red))
    count = len(POLICY.rules) - 1
    assert last_lines(run)[0].startswith(f"{count} rule{'s' * (count != 1)} green, 1 not asked: ")


@pytest.mark.parametrize(
    ("status", "code", "step", "command"),
    [
        ("interrupted", ExitCode.INTERRUPTED, None, "specgate micro --resume 'runs/a b'"),
        ("complete", ExitCode.INCONCLUSIVE, "--resume RUN --measurement-runs 8", None),
        ("complete", ExitCode.ENV_REJECTED, None, "specgate machine doctor"),
    ],
)
def test_the_next_command_fits_the_end(
    status: Literal["interrupted", "complete"], code: ExitCode, step: str | None, command: str | None
) -> None:
    verdicts = (replace(GREEN.verdicts[0], required=True, next_step=f"about 4 more rounds: {step}" if step else None),)
    run = replace(GREEN, verdicts=verdicts, status=status)
    wanted = command or "specgate micro --resume 'runs/a b' --measurement-runs 8"
    assert f"next: {wanted}" in last_lines(run, code)


@pytest.mark.parametrize(
    ("status", "stopped", "code"),
    [
        ("interrupted", None, ExitCode.INTERRUPTED),
        ("partial", None, ExitCode.BACKEND_ERROR),
        ("partial", ExitCode.ENV_REJECTED, ExitCode.ENV_REJECTED),
        ("partial", ExitCode.PASS, ExitCode.INTERNAL),
    ],
)
def test_a_stored_run_that_was_stopped_is_shown_as_it_ended(
    status: Literal["interrupted", "partial"], stopped: ExitCode | None, code: ExitCode
) -> None:
    run = replace(GREEN, status=status, stopped=stopped, failures={"run": "stopped"})
    assert ending(run) == ("not reached", code) and headline(run).state == code.name


def test_a_verdict_that_could_not_be_stored_has_no_next_command_beside_the_error() -> None:
    *_, folder, last = closing_lines(GREEN, HERE, (NOT_STORED, ExitCode.ENV_REJECTED))
    assert (folder, last) == (f"run folder {HERE}", "verdict not stored (exit 4)")


def test_a_run_whose_software_changed_is_not_to_be_continued() -> None:
    run = replace(GREEN, status="partial", failures={"run": f"it changed\n  {MEASURE_ANEW}"})
    assert not any("--resume" in line for line in last_lines(run, ExitCode.INVALID))


def test_wrong_tokens_have_no_next_command_beside_what_the_rule_says() -> None:
    assert not any(line.startswith("next: ") for line in last_lines(GREEN, ExitCode.INVALID))


@pytest.mark.parametrize(
    ("streak", "command"), [(0, "specgate micro --scenario demo-64 --pair p"), (2, "specgate full --pair p")]
)
def test_after_a_gate_comes_the_next_gate_and_after_the_last_the_full_run(streak: int, command: str) -> None:
    order = Promotion({"demo-64": "0" * 64}, 3, streak, "specgate micro --scenario demo-64 --pair p")
    assert f"next: {command}" in last_lines(replace(GREEN, promotion=order))
