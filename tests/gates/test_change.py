"""One figure of run B beside run A's: worse, no worse, better, or not to be known."""

from __future__ import annotations

from typing import Any

import pytest

from specgate.analysis.intervals.between_runs import OF_TIME
from specgate.contract import BetweenRuns, Rule, State, Verdict
from specgate.contract.comparisons import Change, Contrast, How
from specgate.gates.change import GATE
from tests.support.factories import blocks_of, plan_of, run_of

PLAN = plan_of()
RUN = run_of(PLAN, blocks_of(PLAN))
CELL = PLAN.cells[1]


def verdict(metric: str = "acceptance_length", margin: float = 2.0, trust: bool = False, **fields: Any) -> Verdict:
    made = {
        "cell": CELL,
        "partner": CELL,
        "metric": metric,
        "how": How.BY_PROMPT,
        "a": 2.0,
        "b": 2.0,
        "ratio": 1.0,
        "ci_low": 0.99,
        "ci_high": 1.01,
        "n": 8,
        "same_prompts": True,
        **fields,
    }
    rule = Rule("r", "change", True, params={"metric": metric, "margin_pct": margin, "trust_unpaired": trust})
    (outcome,) = GATE.judge(rule, Contrast(RUN, RUN, (Change(**made),), (), (), ()))
    return outcome


@pytest.mark.parametrize(
    ("metric", "low", "high", "state"),
    [
        ("acceptance_length", 0.99, 1.01, State.PASS),
        ("acceptance_length", 0.97, 1.00, State.INCONCLUSIVE),
        ("acceptance_length", 0.90, 0.95, State.FAIL),
        ("acceptance_length", 1.01, 1.05, State.IMPROVED),
        ("p50_ttft_ms", 0.99, 1.01, State.PASS),
        ("p50_ttft_ms", 1.00, 1.03, State.INCONCLUSIVE),
        ("p50_ttft_ms", 1.05, 1.10, State.FAIL),
        ("p50_ttft_ms", 0.90, 0.99, State.IMPROVED),
    ],
)
def test_which_way_is_worse_hangs_on_the_metric(metric: str, low: float, high: float, state: State) -> None:
    assert verdict(metric, ci_low=low, ci_high=high).state is state


@pytest.mark.parametrize(
    ("low", "high", "code", "words"),
    [
        (0.99, 1.01, "same", "the same, within 2 % either way"),
        (0.985, 0.995, "within_margin", "worse, by less than 2 %"),
        (1.005, 1.015, "better", "better, by less than 2 %"),
        (0.99, 1.03, "within_margin", "at most 2 % worse"),
        (1.01, 1.05, "better", "0.990x, 95 % interval 1.010–1.050, paired by prompt: better"),
    ],
)
def test_equivalence_is_said_where_both_one_sided_tests_prove_it(
    low: float, high: float, code: str, words: str
) -> None:
    outcome = verdict(ratio=0.99, ci_low=low, ci_high=high)
    assert outcome.reason_code == code and outcome.message.endswith(words)


SPEC, BASE = PLAN.cells[1], PLAN.cells[0]


def of(metric: str, low: float, high: float, cell: Any = SPEC, how: How = How.UNPAIRED) -> Change:
    ratio = (low * high) ** 0.5
    return Change(cell, cell, metric, how, 1.0, ratio, ratio, low, high, 8, True)


def speedup(
    spec: tuple[float, float], base: tuple[float, float], ratio: tuple[float, float], *, trust: bool = False
) -> Verdict:
    changes = (
        of("speedup_vs_ar_ratio", *ratio, how=How.OVER_BASELINES),
        of("output_tok_s", *spec),
        of("output_tok_s", *base, cell=BASE),
    )
    params: dict[str, float | str | bool] = {
        "metric": "speedup_vs_ar_ratio",
        "margin_pct": 5.0,
        "trust_unpaired": trust,
    }
    rule = Rule("r", "change", True, role="spec-*", params=params)
    (outcome,) = GATE.judge(rule, Contrast(RUN, RUN, changes, (), (), ()))
    return outcome


def test_a_build_that_is_faster_in_both_roles_does_not_fail_since_its_baseline_gained_more() -> None:
    result = speedup(spec=(1.22, 1.23), base=(1.49, 1.51), ratio=(0.81, 0.83))
    assert (result.state, result.reason_code) == (State.INCONCLUSIVE, "baseline_gained_more")
    assert "because the baseline gained more" in result.message
    assert "+22.5 % in spec-3, +50.0 % in baseline" in result.message
    assert result.next_step is not None and "one session" in result.next_step
    trusted = speedup(spec=(1.22, 1.23), base=(1.49, 1.51), ratio=(0.81, 0.83), trust=True)
    assert (trusted.state, trusted.reason_code) == (State.PASS, "baseline_gained_more"), "where times are trusted"


@pytest.mark.parametrize("trust", [False, True])
@pytest.mark.parametrize(
    ("spec", "base"),
    [((0.88, 0.92), (1.05, 1.07)), ((0.99, 1.01), (1.1, 1.2)), ((0.8, 0.82), (0.97, 0.99)), ((1.1, 1.2), (0.99, 1.5))],
    ids=["slower", "not proven faster", "both slower", "baseline not proven faster"],
)
def test_a_speed_up_that_fell_fails_unless_both_roles_are_proven_faster(
    spec: tuple[float, float], base: tuple[float, float], trust: bool
) -> None:
    assert speedup(spec, base, ratio=(0.81, 0.86), trust=trust).state is State.FAIL


def test_a_speed_up_that_rose_since_the_baseline_lost_more_is_no_improvement() -> None:
    result = speedup(spec=(0.88, 0.92), base=(0.80, 0.82), ratio=(1.08, 1.12))
    assert (result.state, result.reason_code) == (State.PASS, "baseline_lost_more")
    assert speedup(spec=(1.01, 1.03), base=(0.94, 0.96), ratio=(1.08, 1.12)).state is State.IMPROVED


def test_times_of_two_runs_prove_nothing_unless_the_rule_trusts_them() -> None:
    outcome = verdict("mean_tpot_ms", how=How.UNPAIRED, ci_low=1.2, ci_high=1.3)
    assert (outcome.state, outcome.reason_code) == (State.INCONCLUSIVE, "unpaired_in_time")
    assert verdict("mean_tpot_ms", how=How.UNPAIRED, ci_low=1.2, ci_high=1.3, trust=True).state is State.FAIL


def test_figures_of_other_prompts_decide_nothing_even_where_times_are_trusted() -> None:
    outcome = verdict("mean_tpot_ms", how=How.UNPAIRED, same_prompts=False, ci_low=1.2, ci_high=1.3, trust=True)
    assert (outcome.state, outcome.reason_code) == (State.INCONCLUSIVE, "prompts_differ")


def test_wrong_tokens_make_a_speed_invalid() -> None:
    outcome = verdict("speedup_vs_ar_ratio", ratio=None, ci_low=None, ci_high=None, reason_code="token_mismatch")
    assert outcome.state is State.INVALID


@pytest.mark.parametrize("reason", ["acceptance_sources_differ", "not_measured"])
def test_what_could_not_be_compared_is_inconclusive_with_the_reason(reason: str) -> None:
    outcome = verdict(ratio=None, ci_low=None, ci_high=None, reason_code=reason)
    assert (outcome.state, outcome.reason_code) == (State.INCONCLUSIVE, reason)
    assert reason.replace("_", " ") in outcome.message


def test_a_ratio_without_an_interval_is_inconclusive() -> None:
    assert verdict(ci_low=None, ci_high=None, reason_code="few_samples").reason_code == "few_samples"


def test_a_metric_that_is_none_is_refused_with_those_there_are() -> None:
    rule = Rule("r", "change", True, params={"metric": "acceptance_lenght", "margin_pct": 5.0, "trust_unpaired": False})
    ((key, why),) = GATE.problems(rule)
    assert key == "metric" and "acceptance_length" in why


def test_a_rule_that_matches_no_cell_is_shown_as_skipped() -> None:
    params: dict[str, float | str | bool] = {"metric": "mean_tpot_ms", "margin_pct": 1.0, "trust_unpaired": False}
    rule = Rule("r", "change", True, role="spec-9", params=params)
    (outcome,) = GATE.judge(rule, Contrast(RUN, RUN, (), (), (), ()))
    assert outcome.state is State.SKIPPED


def test_a_verdict_on_a_time_says_what_it_allows_for_between_processes_and_what_is_assumed() -> None:
    both = verdict("p50_ttft_ms", between=(OF_TIME, OF_TIME))
    assert "paired by prompt, process to process 0.56 % (sd, assumed) in each run" in both.message
    assert (both.evidence["process_sd_a"], both.evidence["processes_a"]) == (OF_TIME.process_sd, None)
    one = verdict("p50_ttft_ms", between=(OF_TIME, BetweenRuns(0.0021, 4)))
    assert (
        "in A process to process 0.56 % (sd, assumed), in B process to process 0.21 % (sd, 5 measured)" in one.message
    )
    assert (one.evidence["process_sd_b"], one.evidence["processes_b"]) == (0.0021, 5)
    assert "process" not in verdict().message and "process_sd_a" not in verdict().evidence
