"""check: what a policy can say of a result from elsewhere, and what it cannot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from specgate import plugins
from specgate.analysis.verdict import overall
from specgate.archive.judging.other_results import judged_results
from specgate.archive.other_tools.scripts import scenario_of
from specgate.cli import cli as commands
from specgate.contract import Policy, Run, State
from specgate.errors import ExitCode, InvalidResult, SpecgateError, UsageError
from specgate.planning.policy import find_policy
from tests.support.factories import POLICY, policy_of

BASELINE = {"scenario": "Baseline_Single_Context32K", "throughput_tokens_per_sec": {"mean": 100.0, "std": 1.0}}
SPECULATIVE: dict[str, Any] = {
    "scenario": "Speculative_Single_Context32K_3tokens",
    "throughput_tokens_per_sec": {"mean": 210.0},
    "eagle_speculation": {
        "enabled": True,
        "num_drafts": 100,
        "total_draft_tokens": 300,
        "total_accepted_tokens": 222,
        "mean_acceptance_rate": 0.74,
        "mean_acceptance_length": 3.22,
    },
}


def seed() -> Policy:
    return find_policy("seed", plugins.gates())


def write(folder: Path, data: object, name: str = "result.json") -> Path:
    (folder / name).write_text(json.dumps(data))
    return folder / name


def states(run: Run) -> dict[str, tuple[State, str]]:
    return {v.rule: (v.state, v.reason_code) for v in run.verdicts}


def speculative(**changes: object) -> dict[str, Any]:
    return {**SPECULATIVE, "eagle_speculation": {**SPECULATIVE["eagle_speculation"], **changes}}


def test_of_a_benchmark_acceptance_is_judged_and_the_rest_is_said_to_be_beyond_it(tmp_path: Path) -> None:
    policy = policy_of(
        *(rule for rule in seed().rules if rule.gate != "acceptance"),
        *(r for r in POLICY.rules if r.gate == "acceptance"),
    )
    run = judged_results(write(tmp_path, [BASELINE, SPECULATIVE]), policy)
    states_of_rules = states(run)
    assert states_of_rules["acceptance"] == (State.PASS, "at_least_min")
    assert states_of_rules["full-32k-single-speed"] == (State.INCONCLUSIVE, "unpaired_in_time")
    assert states_of_rules["full-16k-b4-speed"] == (State.SKIPPED, "no_cell")
    for rule in ("records-valid", "tokens-equal", "no-loops"):
        assert states_of_rules[rule] == (State.INCONCLUSIVE, "not_in_file")
    (speed,) = [v for v in run.verdicts if v.rule == "full-32k-single-speed"]
    assert speed.evidence["speedup_vs_ar_ratio"] == pytest.approx(2.1)
    assert overall(run) == (State.INCONCLUSIVE, ExitCode.INCONCLUSIVE)


def test_too_short_runs_are_a_fail_even_so(tmp_path: Path) -> None:
    short = speculative(total_accepted_tokens=60, mean_acceptance_rate=0.2, mean_acceptance_length=1.6)
    run = judged_results(write(tmp_path, [BASELINE, short]), POLICY)
    assert states(run)["acceptance"] == (State.FAIL, "below_min")
    assert overall(run)[1] is ExitCode.FAIL


@pytest.mark.parametrize(
    "arrange",
    [
        lambda b, s: {"results": [b, s]},
        lambda b, s: {b["scenario"]: nameless(b), s["scenario"]: nameless(s)},
        lambda b, s: [s, b],
    ],
    ids=["under results", "by name", "a list"],
)
def test_results_are_found_however_the_file_holds_them(tmp_path: Path, arrange: Any) -> None:
    run = judged_results(write(tmp_path, arrange(BASELINE, SPECULATIVE)), seed())
    assert [c.cell.key for c in run.cells] == ["full-32k-single/elsewhere/c0/b0/spec-3"]
    assert states(run)["full-32k-single-speed"][1] == "unpaired_in_time"


def nameless(result: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in result.items() if k != "scenario"}


def test_two_files_and_what_they_do_not_say(tmp_path: Path) -> None:
    result = write(tmp_path, nameless(SPECULATIVE))
    with pytest.raises(UsageError, match="true or false was expected"):
        judged_results(write(tmp_path, of_script(micro_run="yes"), "odd.json"), seed())
    with pytest.raises(UsageError, match="scenario unknown"):
        judged_results(result, seed(), role="spec-3")
    with pytest.raises(UsageError, match="spec-N"):
        judged_results(result, seed(), role="spec3", scenario="micro-32k-single")
    alone = judged_results(result, seed(), role="spec-3", scenario="micro-32k-single")
    assert states(alone)["micro-32k-single-acceptance"] == (State.PASS, "at_least_min")
    assert states(alone)["micro-32k-single-speed"] == (State.INCONCLUSIVE, "baseline_missing")
    baseline = write(tmp_path, nameless(BASELINE), "baseline.json")
    both = judged_results(result, seed(), baseline=baseline, role="spec-3", scenario="micro-32k-single")
    assert states(both)["micro-32k-single-speed"] == (State.INCONCLUSIVE, "unpaired_in_time")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"total_accepted_tokens": 301}, "does not hold: 301, 300, 100 · 3"),
        ({"total_draft_tokens": 301}, "does not hold: 222, 301, 100 · 3"),
        ({"mean_acceptance_length": 3.5}, "mean_acceptance_length = 3.5, but 1 + accepted / drafts = 3.2200"),
        ({"mean_acceptance_rate": 0.9}, "mean_acceptance_rate = 0.9, but accepted / drafted = 0.7400"),
    ],
)
def test_counts_that_contradict_each_other_are_refused(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidResult) as caught:
        judged_results(write(tmp_path, [speculative(**changes)]), seed())
    assert message in str(caught.value) and "result.json" in str(caught.value)


def test_a_stated_length_without_the_bonus_token_is_understood(tmp_path: Path) -> None:
    run = judged_results(write(tmp_path, speculative(mean_acceptance_length=2.22)), POLICY)
    assert run.cells[0].values["acceptance_length"].value == pytest.approx(3.22)


def test_speculation_that_drafted_nothing_is_invalid(tmp_path: Path) -> None:
    off = speculative(num_drafts=0, total_draft_tokens=0, total_accepted_tokens=0)
    assert states(judged_results(write(tmp_path, off), POLICY))["acceptance"] == (State.INVALID, "no_drafts")


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("{", UsageError, "not JSON"),
        ("[]", UsageError, "holds no result"),
        (json.dumps(BASELINE), UsageError, "no result in it tells of speculation"),
        (json.dumps(speculative(num_drafts=None)), UsageError, "eagle_speculation.num_drafts: None: a number"),
        (json.dumps(speculative(num_drafts=-1)), UsageError, "eagle_speculation.num_drafts: -1"),
        (json.dumps({**SPECULATIVE, "throughput_tokens_per_sec": 3}), UsageError, "tokens_per_sec.mean: None"),
        (json.dumps({**SPECULATIVE, "throughput_tokens_per_sec": {"mean": 0}}), InvalidResult, "nothing was generated"),
        (json.dumps({**SPECULATIVE, "eagle_speculation": "on"}), UsageError, "eagle_speculation: a mapping"),
    ],
)
def test_what_is_no_result_is_refused_with_the_place(
    tmp_path: Path, text: str, kind: type[SpecgateError], message: str
) -> None:
    """A file of another kind is a matter of the command line (2), a result with a wrong figure is invalid (6)."""
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(kind, match=r"result\.json") as caught:
        judged_results(tmp_path / "result.json", seed())
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "scenario"),
    [
        ("Speculative_Batch4_Context16K", "full-16k-b4"),
        ("speculative_single_context32k_5tokens", "full-32k-single"),
        ("Baseline_Single_Context8K", "full-8k-single"),
        ("my run", None),
    ],
)
def test_names_of_benchmarks_say_their_scenario(name: str, scenario: str | None) -> None:
    assert scenario_of(name, {}, micro=False, where="x") == scenario
    assert scenario_of(name, {}, micro=True, where="x") == (scenario and scenario.replace("full", "micro"))


def of_script(**about: object) -> dict[str, Any]:
    """A result as `benchmark_speculative.py` writes it."""
    scenario = {
        "name": "Speculative_Single_Context32K_3tokens",
        "batch_size": 1,
        "context_length": 32768,
        "max_new_tokens": 512,
        "use_speculation": True,
        "num_spec_tokens": 3,
        "perf_mode": True,
        "micro_run": True,
    }
    throughput = {"mean": 210.0, "min": 205.0, "max": 215.0, "values": [205.0, 215.0]}
    return {**SPECULATIVE, "throughput_tokens_per_sec": throughput, "scenario": {**scenario, **about}}


def test_a_micro_result_of_the_scripts_is_judged_by_the_micro_rules(tmp_path: Path) -> None:
    plain = {**of_script(name="Baseline_Single_Context32K", use_speculation=False, num_spec_tokens=0)}
    del plain["eagle_speculation"]
    run = judged_results(write(tmp_path, [plain, of_script()]), seed())
    assert run.kind == "micro" and run.cells[0].cell.point.scenario == "micro-32k-single"
    assert states(run)["micro-32k-single-acceptance"] == (State.PASS, "at_least_min")
    assert states(run)["micro-32k-single-speed"] == (State.INCONCLUSIVE, "unpaired_in_time")
    short = speculative(total_accepted_tokens=190, mean_acceptance_rate=0.633, mean_acceptance_length=2.9)
    run = judged_results(write(tmp_path, {**of_script(), "eagle_speculation": short["eagle_speculation"]}), seed())
    assert states(run)["micro-32k-single-acceptance"] == (State.FAIL, "below_min")
    assert judged_results(write(tmp_path, of_script(micro_run=False)), seed()).kind == "full"


def test_sizes_tell_the_scenario_where_a_name_does_not(tmp_path: Path) -> None:
    odd = of_script(name="Speculative_Batch16_LongGen_3tokens", batch_size=8, context_length=16384)
    (cell,) = judged_results(write(tmp_path, odd), seed()).cells
    assert cell.cell.key == "micro-16k-b8/elsewhere/c0/b0/spec-3"


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (of_script(use_speculation=False), "use_speculation is false, but eagle_speculation is there"),
        ({k: v for k, v in of_script().items() if k != "eagle_speculation"}, "missing: the engine decoded without its"),
        (of_script(batch_size=4), r"context_length, batch_size = \(32768, 4\), but its name says \(32768, 1\)"),
        (of_script(num_spec_tokens=2), "num_spec_tokens = 2, but its name says 3"),
        ({**of_script(), "throughput_tokens_per_sec": {"mean": 210.0, "values": [90, 95]}}, "but its values are"),
    ],
)
def test_a_result_of_the_scripts_that_contradicts_itself_is_refused(
    tmp_path: Path, result: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidResult, match=message):
        judged_results(write(tmp_path, result), seed())


def test_the_command_prints_every_verdict_and_ends_with_its_code(tmp_path: Path) -> None:
    file = write(tmp_path, [BASELINE, SPECULATIVE])
    done = CliRunner().invoke(commands, ["runs", "check", str(file), "--policy", "seed"])
    assert done.exit_code == 3, done.output
    assert "INCONCLUSIVE tokens-equal on full-32k-single · spec-3: cannot be judged from" in done.output
    assert done.output.endswith("verdict INCONCLUSIVE (exit 3)\n")
