"""Equal tokens pass, wrong ones are located, near ties are listed, and noise is not excused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from specgate.analysis.checks.contradictions import CheckFacts
from specgate.analysis.reduce import Checked, measure
from specgate.contract import LOSSY, Block, NearTies, Rule, Run, ScoreCheck, State, TokenChecks, Verdict
from specgate.gates.speed import GATE as SPEED
from specgate.gates.tokens.gate import GATE
from tests.support.factories import blocks_of, corrupt, margins_of, plan_of, run_of, scenario

RULE = Rule("tokens", "tokens", True, role="spec-*", params={"near_tie_margin": 1e-3})


def verdict(run: Run) -> Verdict:
    (outcome,) = GATE.judge(RULE, run)
    return outcome


def test_the_baselines_tokens_pass() -> None:
    plan = plan_of()
    outcome = verdict(run_of(plan, blocks_of(plan)))
    assert (outcome.state, outcome.reason_code, outcome.evidence["compared_tokens"]) == (
        State.PASS,
        "tokens_equal",
        8 * 35,
    )


def test_a_wrong_token_is_invalid_and_located() -> None:
    plan = plan_of()
    blocks = blocks_of(plan, change=lambda b: corrupt(b, at=7) if b.prompt_set == 2 else b)
    outcome = verdict(run_of(plan, blocks, margins=margins_of(blocks, 0.25)))
    assert (outcome.state, outcome.reason_code, outcome.evidence["mismatches"]) == (State.INVALID, "token_mismatch", 2)
    assert "prompt set 2, round 0, slot 0, token 7" in outcome.message and "0.25" in outcome.message


def test_one_mismatch_among_near_ties_is_invalid() -> None:
    plan = plan_of()
    blocks = blocks_of(plan, change=corrupt)
    outcome = verdict(run_of(plan, blocks, margins=margins_of(blocks, 1e-4)[1:]))
    assert (outcome.state, outcome.evidence["mismatches"], outcome.evidence["near_ties"]) == (State.INVALID, 1, 7)
    assert "showed no log-probabilities there" in str(outcome.next_step), "nobody can tell it from a near tie"


def test_rounds_that_do_not_repeat_are_invalid_whatever_the_margins() -> None:
    plan = plan_of()
    blocks = blocks_of(plan, change=lambda b: corrupt(b) if b.round else b)
    outcome = verdict(run_of(plan, blocks, margins=margins_of(blocks, 1e-4)))
    assert (outcome.state, outcome.reason_code) == (State.INVALID, "nondeterministic")


def test_without_a_pair_to_compare_it_cannot_pass() -> None:
    plan = plan_of()
    outcome = verdict(run_of(plan, [b for b in blocks_of(plan) if b.role.speculative]))
    assert (outcome.state, outcome.reason_code) == (State.INVALID, "nothing_compared")


def test_tokens_of_a_forced_run_pass_in_no_way_and_its_baseline_still_does() -> None:
    plan = plan_of()
    run = run_of(plan, blocks_of(plan))
    forced = replace(run, engines={k: replace(f, acceptance="forced") for k, f in run.engines.items()})
    outcome = verdict(forced)
    assert (outcome.state, outcome.reason_code) == (State.INVALID, "forced_acceptance")
    (baseline,) = GATE.judge(replace(RULE, role="baseline"), forced)
    assert baseline.state is State.PASS


# ── engines that say that their tokens may differ ────────────────────────────────────────────────────────────────────


def lossy_run(change: Callable[[Block], Block], **details: str) -> Run:
    """A run whose engine has these `details`, and whose spec blocks accept nothing."""
    plan = plan_of(scenario(steps=12))
    blocks = [change(b) for b in blocks_of(plan, accept=(0,))]
    run = run_of(plan, blocks)
    engines = {key: replace(f, details={**f.details, **details}) for key, f in run.engines.items()}
    checked, check_facts = Checked(asked=TokenChecks()), CheckFacts(engines, None)
    cells, comparisons = measure(plan, blocks, (), NearTies(1e-3), checked, check_facts=check_facts)
    return replace(run, engines=engines, cells=cells, comparisons=comparisons)


def test_tokens_of_a_lossy_engine_are_judged_by_no_rule_that_does_not_say_how_many_must_be_equal() -> None:
    outcome = verdict(lossy_run(corrupt, **{LOSSY: "by design"}))
    assert (outcome.state, outcome.reason_code) == (State.SKIPPED, "lossy")
    assert outcome.evidence["equal_share"] == 5 / 13  # the prefill token and 12 more, the sixth of them wrong
    assert "38.5% of 104 tokens stand before the first that is not the baseline's, 8 texts differ" in outcome.message
    assert "min_equal_share" in str(outcome.next_step)


def test_a_lossy_engine_that_changes_nothing_does_not_pass_silently_either() -> None:
    outcome = verdict(lossy_run(lambda made: made, **{LOSSY: "by design"}))
    assert (outcome.state, outcome.evidence["equal_share"]) == (State.SKIPPED, 1.0)


@pytest.mark.parametrize(
    ("least", "state", "words"),
    [(0.38, State.PASS, "(38% are"), (0.39, State.FAIL, "least 39%"), (0.385, State.FAIL, "least 38.5%")],
)
def test_the_share_of_equal_tokens_that_a_rule_asks_for_decides(least: float, state: State, words: str) -> None:
    run = lossy_run(corrupt, **{LOSSY: "by design"})
    rule = replace(RULE, params={"near_tie_margin": 1e-3, "min_equal_share": least})
    (outcome,) = GATE.judge(rule, run)
    assert outcome.state is state and words in outcome.message
    assert (": 38.46% of" if least == 0.385 else ": 38.5% of") in outcome.message


def test_no_share_excuses_an_engine_that_does_not_say_so() -> None:
    (outcome,) = GATE.judge(replace(RULE, params={"near_tie_margin": 1e-3, "min_equal_share": 0.1}), lossy_run(corrupt))
    assert (outcome.state, outcome.reason_code) == (State.INVALID, "token_mismatch")


def test_lossy_text_that_does_not_repeat_itself_is_invalid() -> None:
    outcome = verdict(lossy_run(lambda made: corrupt(made) if made.round else made, **{LOSSY: "by design"}))
    assert (outcome.state, outcome.reason_code) == (State.INVALID, "nondeterministic")


def test_the_baseline_of_a_lossy_engine_is_judged_like_any_other() -> None:
    (outcome,) = GATE.judge(replace(RULE, role="baseline"), lossy_run(corrupt, **{LOSSY: "by design"}))
    assert (outcome.state, outcome.reason_code) == (State.PASS, "deterministic")


def test_the_speed_of_lossy_tokens_is_quoted_and_says_so_and_that_of_wrong_ones_is_withheld() -> None:
    rule = Rule("speed", "speed", True, role="spec-*", params={"min": 0.5})
    (outcome,) = SPEED.judge(rule, lossy_run(corrupt, **{LOSSY: "by design"}))
    assert outcome.state is State.PASS
    assert outcome.message.endswith("; of tokens that may differ from the baseline's")
    (wrong,) = SPEED.judge(rule, lossy_run(corrupt))
    assert (wrong.state, wrong.reason_code) == (State.INVALID, "token_mismatch")


@pytest.mark.parametrize("change", [lambda block: block, corrupt])
@pytest.mark.parametrize("lost", [True, False])
@pytest.mark.parametrize("required", [True, False])
def test_a_required_rule_is_not_judged_where_the_second_engine_was_lost(
    change: Callable[[Block], Block], lost: bool, required: bool
) -> None:
    """Not where it could not be asked at all, nor where the tokens are wrong anyway."""
    run = run_of(plan := plan_of(), blocks_of(plan, change=change))
    score = ScoreCheck("reference", unscored="engine process 7 was ended by SIGKILL", lost=lost)
    run = replace(run, cells=tuple(replace(c, rescored=score) for c in run.cells))
    (judgement,) = GATE.judge(replace(RULE, required=required), run)
    if change is corrupt:
        assert judgement.state is State.INVALID
    elif lost and required:
        assert (judgement.state, judgement.reason_code) == (State.NOT_JUDGED, "second_engine_lost")
        assert "ended by SIGKILL" in judgement.message
    else:
        assert judgement.state is State.PASS and "the engine's own word: engine process 7" in judgement.message
