"""A policy from measured runs: its floors lie where the samples prove them, and the runs pass it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from specgate import plugins
from specgate.analysis.verdict import overall
from specgate.archive.policy_from_runs import policy_text, rounded_down
from specgate.archive.stored_runs import StoredRun, load_runs
from specgate.cli import cli as commands
from specgate.contract import Policy, Rule, State
from specgate.errors import ExitCode, UsageError
from specgate.files.yamlfile import loads
from specgate.planning.policy import find_policy, parse_policy
from specgate.run.recompute import judge
from tests.support.factories import corrupt, scenario
from tests.support.kept_runs import unpacked
from tests.support.stored_runs import store

GATES = plugins.gates()
H200 = "2026-11-30-h200/run-fp8-16k-b4.tar.xz"
MIXTURE = "2026-11-30-h200/run-120b-32k.tar.xz"


def written(*runs: Path, margin_pct: float = 5.0, changes: Mapping[str, Any] | None = None) -> tuple[str, Policy]:
    """The text that is written of `runs`, with fields of each run replaced by `changes`, and the policy that it is."""
    stored = [by_engine(replace(one, run=replace(one.run, **(changes or {})))) for one in load_runs(runs)]
    text = policy_text(stored, Path("/nowhere"), margin_pct)
    return text, parse_policy(loads(text, Path("/nowhere/mine.yaml")), GATES)


def by_engine(one: StoredRun) -> StoredRun:
    """The run as if it had been judged by the policy `engine`."""
    return replace(one, config=replace(one.config, policy=find_policy("engine", GATES)))


def floor(policy: Policy, gate: str, name: str) -> float:
    (rule,) = [r for r in policy.rules if r.gate == gate and r.scenario == name]
    assert rule.required
    return float(rule.params["min"])


def refused(*runs: Path, **how: Any) -> str:
    with pytest.raises(UsageError) as caught:
        written(*runs, **how)
    return str(caught.value)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return store(tmp_path_factory.mktemp("runs") / "one", scenarios=[scenario(rounds=6)])


@pytest.mark.parametrize("kept", [H200, MIXTURE], ids=["8b", "120b"])
def test_a_stored_run_passes_the_policy_that_is_made_of_it(kept: str, tmp_path: Path) -> None:
    stored = unpacked(kept, tmp_path)
    text, policy = written(stored)
    (one,) = load_runs([stored])
    assert overall(judge(one.run, policy)) == (State.PASS, ExitCode.PASS)
    assert one.run.id in text
    for comparison in one.run.comparisons:
        least = floor(policy, "speed", comparison.cell.point.scenario)
        low, measured = comparison.speedup.ci_low, comparison.speedup.value
        assert low is not None and measured is not None and 0.9 * low < least <= 0.95 * measured
    assert policy.micro == tuple(s for s in one.run.scenarios)


def test_a_build_that_lost_more_than_the_margin_is_red_by_it(run: Path, tmp_path: Path) -> None:
    _, policy = written(run)
    slower = store(tmp_path / "two", scenarios=[scenario(rounds=6)], cycle_ns=15_400_000)
    worse = store(tmp_path / "three", scenarios=[scenario(rounds=6)], accept=(2, 1, 2, 0, 2, 2))
    slow, less = load_runs([slower, worse])
    assert overall(judge(slow.run, policy))[1] is ExitCode.FAIL
    assert "acceptance" in {v.gate for v in judge(less.run, policy).verdicts if v.state is State.FAIL}


def test_of_several_runs_the_lowest_counts(run: Path, tmp_path: Path) -> None:
    slower = store(tmp_path / "two", scenarios=[scenario(rounds=6)], cycle_ns=16_000_000)
    alone, both = written(run)[1], written(run, slower)[1]
    assert floor(both, "speed", "demo-64") < floor(alone, "speed", "demo-64") - 0.05
    assert floor(both, "speed", "demo-64") == floor(written(slower)[1], "speed", "demo-64")


def test_the_margin_is_at_least_twice_what_the_machine_can_tell(run: Path) -> None:
    (one,) = load_runs([run])
    text, policy = written(run, changes={"mde": {c.cell.key: 0.08 for c in one.run.comparisons}})
    (measured,) = [c.speedup.value for c in one.run.comparisons]
    assert measured is not None
    assert floor(policy, "speed", "demo-64") == rounded_down(measured * (1 - 0.16))
    assert "twice the 8.0 % that this machine can tell" in text
    assert "no noise profile" in written(run)[0]


def test_where_the_intervals_prove_less_the_floor_is_lower_and_says_so(tmp_path: Path) -> None:
    noisy = store(tmp_path / "noisy", scenarios=[scenario(rounds=6)], jitter=0.05)
    text, policy = written(noisy)
    (one,) = load_runs([noisy])
    (measured,) = [c.speedup.value for c in one.run.comparisons]
    assert measured is not None and floor(policy, "speed", "demo-64") < 0.94 * measured
    assert "the intervals prove no more" in text


def test_everything_but_the_floors_is_inherited_from_the_runs_own_policy(run: Path) -> None:
    text, policy = written(run)
    (one,) = map(by_engine, load_runs([run]))
    assert "base: engine" in text.splitlines()
    assert list(one.policy.rules)[:4] == list(policy.rules)[:4]


def test_a_missed_floor_of_the_base_gives_way_and_a_base_that_is_gone_is_named(run: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(
        "schema: specgate.policy/v1\nbase: engine\nrules:\n"
        "  - {id: mine, gate: speed, required: true, scenario: demo-64, role: spec-3, min: 9.0}\n"
    )
    (one,) = load_runs([run])
    one = replace(one, config=replace(one.config, policy=find_policy(str(own), GATES)))
    text = policy_text([one], tmp_path, 5.0)
    policy = parse_policy(loads(text, tmp_path / "new.yaml"), GATES)
    assert "base: own.yaml" in text and "mine" not in {rule.id for rule in policy.rules}
    own.unlink()
    with pytest.raises(UsageError, match=r"the file of its policy own is gone"):
        policy_text([one], tmp_path, 5.0)


# ── runs from which nothing follows ──────────────────────────────────────────────────────────────────────────────────


def test_too_few_pairs_prove_no_floor_and_the_cell_is_named(tmp_path: Path) -> None:
    few = store(tmp_path / "few", scenarios=[scenario(prompt_sets=2, rounds=1)])
    message = refused(few)
    assert "demo-64/fake/c64/b1/spec-3: the samples prove no floor of its speed: " in message
    assert "too few for an interval" in message and "--measurement-runs" in message


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"status": "partial"}, "it is not whole: partial"),
        ({"failures": {"run": "disk full\nfree some"}}, "it is not whole: disk full"),
        ({"cells": (), "comparisons": ()}, "it has no figures of speculation"),
    ],
)
def test_a_run_without_figures_is_named(run: Path, changes: dict[str, Any], says: str) -> None:
    assert refused(run, changes=changes).startswith(f"{run}: no policy follows from this run: {says}")


def test_a_run_with_wrong_tokens_is_named_as_invalid(tmp_path: Path) -> None:
    wrong = store(tmp_path / "wrong", change=corrupt)
    assert "no policy follows from this run: it is INVALID" in refused(wrong)


def test_forced_acceptance_is_no_ground_for_a_floor(run: Path) -> None:
    (one,) = load_runs([run])
    engines = {key: replace(facts, acceptance="forced") for key, facts in one.run.engines.items()}
    assert "its acceptance is forced" in refused(run, changes={"engines": engines})


def test_a_scenario_that_differs_between_the_runs_is_named(run: Path, tmp_path: Path) -> None:
    other = store(tmp_path / "two", scenarios=[scenario(rounds=4)])
    assert f"{other}: scenario demo-64 is another than in {run}" in refused(run, other)


def test_two_pairs_are_two_policies(run: Path, tmp_path: Path) -> None:
    other = store(tmp_path / "two", scenarios=[scenario("other")], backend="elsewhere")
    assert "its back end is elsewhere, that of" in refused(run, other)


# ── the command ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_command_prints_the_policy_or_writes_it_once(tmp_path: Path) -> None:
    run = unpacked(H200, tmp_path)
    printed = CliRunner().invoke(commands, ["policy", "init", str(run)])
    assert printed.exit_code == 0 and printed.output.startswith("# What planted-llama-3.1-8b-al2.5 on cupy must keep")
    file = tmp_path / "mine.yaml"
    done = CliRunner().invoke(commands, ["policy", "init", str(run), "--out", str(file)])
    assert done.exit_code == 0 and file.read_text() == printed.output
    assert isinstance(find_policy(str(file), GATES).rules[0], Rule)
    again = CliRunner().invoke(commands, ["policy", "init", str(run), "--out", str(file)])
    assert isinstance(again.exception, UsageError) and "exists already" in str(again.exception)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["nowhere"], "nowhere is not a run folder"), (["RUN", "--out", "policy.txt"], "a policy is a .yaml file")],
)
def test_bad_input_is_a_usage_error(run: Path, arguments: list[str], says: str) -> None:
    done = CliRunner().invoke(commands, ["policy", "init", *(str(run) if a == "RUN" else a for a in arguments)])
    assert isinstance(done.exception, UsageError) and says in str(done.exception)


@given(st.floats(0.01, 20))
def test_a_floor_is_rounded_to_two_decimals_and_never_upwards(value: float) -> None:
    floor = rounded_down(value)
    assert floor <= value + 1e-9 and value - floor < 0.01 + 1e-9
    assert round(floor, 2) == floor
