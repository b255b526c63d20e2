"""One figure of run B beside run A's: worse, no worse, better, or not to be known."""

from __future__ import annotations

from typing import Any

import pytest

from specgate.core import Rule, State, Verdict
from specgate.core.contrast import Change, Contrast, How
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
    (found,) = GATE.judge(rule, Contrast(RUN, RUN, (Change(**made),), (), (), ()))
    return found


@pytest.mark.parametrize(
    ("metric", "low", "high", "state"),
    [
        ("acceptance_length", 0.99, 1.01, State.PASS),
        ("acceptance_length", 0.97, 1.00, State.INCONCLUSIVE),
        ("acceptance_length", 0.90, 0.95, State.FAIL),
        ("acceptance_length", 1.01, 1.05, State.IMPROVED),
        ("ttft_ms", 0.99, 1.01, State.PASS),
        ("ttft_ms", 1.00, 1.03, State.INCONCLUSIVE),
        ("ttft_ms", 1.05, 1.10, State.FAIL),
        ("ttft_ms", 0.90, 0.99, State.IMPROVED),
    ],
)
def test_which_way_is_worse_hangs_on_the_metric(metric: str, low: float, high: float, state: State) -> None:
    assert verdict(metric, ci_low=low, ci_high=high).state is state


def test_times_of_two_runs_prove_nothing_unless_the_rule_trusts_them() -> None:
    found = verdict("tpot_ms", how=How.UNPAIRED, ci_low=1.2, ci_high=1.3)
    assert (found.state, found.reason_code) == (State.INCONCLUSIVE, "unpaired_in_time")
    assert verdict("tpot_ms", how=How.UNPAIRED, ci_low=1.2, ci_high=1.3, trust=True).state is State.FAIL


def test_figures_of_other_prompts_decide_nothing_even_where_times_are_trusted() -> None:
    found = verdict("tpot_ms", how=How.UNPAIRED, same_prompts=False, ci_low=1.2, ci_high=1.3, trust=True)
    assert (found.state, found.reason_code) == (State.INCONCLUSIVE, "prompts_differ")


def test_wrong_tokens_make_a_speed_invalid() -> None:
    found = verdict("speedup_vs_ar_ratio", ratio=None, ci_low=None, ci_high=None, reason_code="token_mismatch")
    assert found.state is State.INVALID


@pytest.mark.parametrize("reason", ["acceptance_sources_differ", "not_measured"])
def test_what_could_not_be_compared_is_inconclusive_with_the_reason(reason: str) -> None:
    found = verdict(ratio=None, ci_low=None, ci_high=None, reason_code=reason)
    assert (found.state, found.reason_code) == (State.INCONCLUSIVE, reason)
    assert reason.replace("_", " ") in found.message


def test_a_ratio_without_an_interval_is_inconclusive() -> None:
    assert verdict(ci_low=None, ci_high=None, reason_code="few_samples").reason_code == "few_samples"


def test_a_metric_that_is_none_is_never_green() -> None:
    assert verdict("acceptance_lenght", ci_low=1.0, ci_high=1.0).state is State.INVALID


def test_a_rule_on_a_metric_under_its_older_name_is_told_the_new_one() -> None:
    change = Change(CELL, CELL, "mean_tpot_ms", How.UNPAIRED, 2.0, 2.0, 1.0, 0.99, 1.01, 8, same_prompts=True)
    rule = Rule("r", "change", True, params={"metric": "tpot_ms", "margin_pct": 5.0, "trust_unpaired": True})
    (found,) = GATE.judge(rule, Contrast(RUN, RUN, (change,), (), (), ()))
    assert (found.state, found.reason_code) == (State.INVALID, "renamed_metric")
    assert found.next_step == "write metric: mean_tpot_ms"


def test_a_rule_that_matches_no_cell_is_shown_as_skipped() -> None:
    params: dict[str, float | str | bool] = {"metric": "tpot_ms", "margin_pct": 1.0, "trust_unpaired": False}
    rule = Rule("r", "change", True, role="spec-9", params=params)
    (found,) = GATE.judge(rule, Contrast(RUN, RUN, (), (), (), ()))
    assert found.state is State.SKIPPED
