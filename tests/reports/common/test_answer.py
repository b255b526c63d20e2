"""The answer of a run in words, and which of two verdicts counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specgate.analysis.intervals.other_prompts import THESE
from specgate.contract import Divergence, Rule, State, Verdict
from specgate.contract.token_check import TieLaw
from specgate.reports.common.answer import answer, decided_by, which_counts
from tests.support.factories import POLICY, blocks_of, corrupt, judged, plan_of, policy_of, run_of, scenario
from tests.support.loaded import SCRIPT, load_scenario, loaded_run

PLAN = plan_of(scenario(prompt_sets=4, rounds=4))
RUN = run_of(PLAN, blocks_of(PLAN))


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (1.9, 2.1, f"Speculation pays: 2.00×, 95 % 1.90 to 2.10, {THESE}."),
        (0.7, 0.9, f"Speculation costs: 2.00×, 95 % 0.70 to 0.90, {THESE}."),
        (1.0004, 2.1, f"Speculation pays: 2.00×, 95 % 1.0004 to 2.10, {THESE}."),
        (0.7, 0.996, f"Speculation costs: 2.00×, 95 % 0.70 to 0.996, {THESE}."),
        (0.9, 2.1, f"Not enough data to say whether speculation pays: 2.00×, 95 % 0.90 to 2.10, {THESE}."),
        (None, None, "Not enough data to say whether speculation pays: 2.00× so far, without an interval."),
    ],
)
def test_the_interval_decides_whether_speculation_pays(low: float | None, high: float | None, text: str) -> None:
    [comparison] = RUN.comparisons
    speedup = replace(comparison.speedup, value=2.0, ci_low=low, ci_high=high)
    assert answer(replace(RUN, comparisons=(replace(comparison, speedup=speedup),))) == text


def test_a_load_that_shows_no_difference_is_not_said_to_show_one() -> None:
    run = loaded_run(load_scenario((8, 16)))
    [of_one] = run.break_even
    assert (answer(run) or "").startswith("Speculation ")
    unclear = answer(replace(run, break_even=(replace(of_one, outcome="unclear"),)))
    assert (unclear or "").startswith("No difference from the baseline is proven at any level")


def test_a_load_whose_requests_were_refused_is_not_said_to_show_that_speculation_pays() -> None:
    refusing = loaded_run(load_scenario((1, 4, 8), rounds=2), replace(SCRIPT, refuse_beyond=6))
    pays = Rule("pays", "load", True, role="spec-*", params={"min_break_even": 1})
    assert answer(judged(refusing, policy_of(pays))) == "No answer: requests were refused at 8 clients."
    allowing = policy_of(replace(pays, params={**pays.params, "max_refused": 1.0}))
    assert (answer(judged(refusing, allowing)) or "").startswith("Speculation pays ")


def test_a_wrong_token_comes_before_any_speed() -> None:
    run = run_of(PLAN, blocks_of(PLAN, change=corrupt))
    first = run.comparisons[0].tokens.defects[0]
    assert answer(run) == f"Tokens differ: prompt 0, token {first.position}: {first.got} instead of {first.expected}."


def test_tokens_that_a_rule_calls_wrong_come_before_any_speed_too() -> None:
    """The records leave open how the engine rounds, and the rule allows less rounding than would explain the gap."""
    [comparison] = RUN.comparisons
    law = TieLaw(0, 1, 0.0, 3.0, 0.0, 2.0, None)
    tokens = replace(comparison.tokens, divergences=(Divergence(0, 0, 0, 7, 193, 194, margin=1.5),), law=law)
    run = replace(judged(RUN, POLICY), comparisons=(replace(comparison, tokens=tokens),))
    assert not tokens.defects and str(answer(run)).startswith("Speculation pays: ")
    key = comparison.cell.key
    red = Verdict("near", "tokens", key, State.INVALID, True, "token_mismatch", "", judges=("tokens",))
    assert answer(replace(run, verdicts=(red,))) == "Tokens differ: prompt 0, token 7: 194 instead of 193."


def test_several_cells_are_counted() -> None:
    plan = plan_of(scenario(prompt_sets=4, rounds=4, spec=(2, 3)))
    run = run_of(plan, blocks_of(plan))
    slower = replace(
        run.comparisons[0], speedup=replace(run.comparisons[0].speedup, value=0.5, ci_low=0.4, ci_high=0.6)
    )
    assert str(answer(run)).startswith("Speculation pays in all 2 cells: ")
    text = str(answer(replace(run, comparisons=(slower, run.comparisons[1]))))
    assert text.startswith("Speculation pays in 1 of 2 cells: ") and text.endswith("; costs in 1 of 2 cells: 0.50×.")


def test_a_rule_that_cannot_tell_whether_speculation_pays_has_the_last_word() -> None:
    """Its interim look takes a wider interval than the one of 95 % that is shown."""
    pays = judged(RUN, policy_of(Rule("fast", "speed", True, role="spec-*", params={"min": 1.0})))
    assert str(answer(pays)).startswith("Speculation pays: ")
    open_ = tuple(replace(v, state=State.INCONCLUSIVE) for v in pays.verdicts)
    assert str(answer(replace(pays, verdicts=open_))).startswith("Not enough data to say whether speculation pays: ")
    faster = judged(RUN, policy_of(Rule("fast", "speed", True, role="spec-*", params={"min": 1.2})))
    open_ = tuple(replace(v, state=State.INCONCLUSIVE) for v in faster.verdicts)
    assert str(answer(replace(faster, verdicts=open_))).startswith("Speculation pays: "), "asked is more than that"


def test_a_green_run_names_the_rules_that_decided() -> None:
    run = judged(RUN, policy_of(Rule("fast", "speed", True, role="spec-*", params={"min": 1.2})))
    assert decided_by(run) == "All 1 required verdicts are green: fast ≥ 1.2×."


def test_a_speed_up_below_the_floor_says_so() -> None:
    run = judged(RUN, policy_of(Rule("fast", "speed", True, role="spec-*", params={"min": 30})))
    assert run.verdicts[-1].state is State.FAIL
    assert str(answer(run)).startswith("Speculation pays, but less than asked (≥ 30×): ")


def test_beside_a_pass_one_sentence_says_that_it_counts() -> None:
    run = judged(RUN, POLICY)
    assert not list(which_counts(run))
    denied = replace(run.verdicts[0], rule="quiet", required=False, state=State.ENV_REJECTED)
    [sentence] = which_counts(replace(run, verdicts=(*run.verdicts, denied)))
    assert sentence == "PASS counts: quiet only advises; before you quote a time, measure again on a quiet machine."
    wrong = replace(run.verdicts[0], state=State.INVALID)
    assert not list(which_counts(replace(run, verdicts=(wrong, denied))))
