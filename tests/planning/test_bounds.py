"""Numbers are held against their bounds before they are multiplied out, wherever they come from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from specgate.contract import Budget, Grid, Scenario, Schedule
from specgate.errors import UsageError
from specgate.planning.contradictions import BLOCKS, blocks_of, check_plan
from specgate.planning.plan import build_plan
from specgate.planning.scenario import find, override, shipped
from tests.support.in_process import command


@pytest.fixture
def scenario() -> Scenario:
    return find("cpu-1k-single")


def test_the_blocks_of_a_scenario_are_those_of_its_plan() -> None:
    for result in shipped():
        assert blocks_of(result) == sum(len(round_.order) for round_ in build_plan([result], "fake").rounds)
        check_plan([result])


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"grid": Grid((10**400,), (1,), (3,))}, "grid.context[0]: 1000"),
        ({"grid": Grid((64,), (4 * 10**8,), (3,))}, "grid.batch[0]: 400000000: must be at most 4096"),
        ({"grid": Grid((), (1,), (3,))}, "grid.context: exact prompt lengths are needed"),
        ({"grid": Grid((1,), (1,), tuple(range(1, 1000)))}, "grid.spec[64]: 65: must be at most 64"),
        ({"budget": Budget(steps=-5)}, "budget.steps: -5: must be at least 1"),
        ({"budget": Budget(new_tokens=10**12)}, "budget.new_tokens: "),
        ({"schedule": Schedule(10**8, 1)}, "schedule.rounds: 100000000: must be at most 10000"),
        ({"schedule": Schedule(2, 13_000_000)}, "schedule.warmup_rounds: 13000000: must be at most 10000"),
        ({"schedule": Schedule(10_000, 1)}, "1 points × 120001 rounds × 2 roles = 240002 blocks; at most 200000"),
        ({"timeout_s": float("nan")}, "timeout_s: None: must be a number"),
    ],
)
def test_a_stored_scenario_that_is_too_large_is_not_laid_out(
    scenario: Scenario, changes: dict[str, object], says: str
) -> None:
    with pytest.raises(UsageError) as caught:
        build_plan([replace(scenario, **changes)], "fake")  # type: ignore[arg-type]  # fields of Scenario, by name
    assert says in str(caught.value) and "cpu-1k-single.yaml: " in str(caught.value)


def test_scenarios_that_are_small_alone_may_be_too_many(scenario: Scenario) -> None:
    large = replace(scenario, schedule=Schedule(8_000, 1))
    others = [replace(large, name=str(i)) for i in range(2)]
    assert blocks_of(large) < BLOCKS
    with pytest.raises(UsageError, match=r"2 scenarios: \d+ blocks; at most 200000"):
        build_plan(others, "fake")


@pytest.mark.parametrize("runs", [20_000, 10**18])
def test_settings_of_the_command_line_have_the_same_bounds(scenario: Scenario, runs: int) -> None:
    with pytest.raises(UsageError, match="at most 10000 of each"):
        override(scenario, warmup_runs=runs)
    with pytest.raises(UsageError, match="at most 10000 of each"):
        override(scenario, measurement_runs=runs)
    with pytest.raises(UsageError, match="240002 blocks; at most 200000"):
        override(scenario, measurement_runs=10_000)


@pytest.mark.parametrize(
    "arguments",
    [
        ["micro", "--warmup-runs", "9" * 400],
        ["machine", "calibrate", "--scenario", "cpu-1k-single", "--margin-pct", "nan"],
        ["engine", "tune", "gemm", "--budget-seconds", "inf"],
        ["engine", "bench", "step", "--context", str(10**12)],
        ["engine", "tape", "x" * 300, "out.json"],
        ["runs", "verify", "x" * 300],
        ["scenarios", "show", "x" * 300],
        ["scenarios", "plan", "--scenario", "x" * 300 + ".yaml"],
        ["micro", "--policy", "x" * 300 + ".yaml"],
        ["micro", "--target", "x" * 300, "--draft", "x" * 300],
    ],
    ids=lambda words: " ".join(words)[:40],
)
@pytest.mark.engine
def test_odd_arguments_end_with_2(tmp_path: Path, arguments: list[str]) -> None:
    ended = command(tmp_path, arguments)
    assert ended.returncode == 2, ended.stderr
    assert "internal" not in ended.stderr and "Traceback" not in ended.stderr


def test_a_folder_that_cannot_be_made_is_the_environments_fault(tmp_path: Path) -> None:
    ended = command(tmp_path, ["full", "--status", "--out", "x" * 300])
    assert ended.returncode == 4 and "File name too long" in ended.stderr
