"""Engines whose text is not the target's, or not the baseline's."""

from __future__ import annotations

import pytest

from tests.cheats.conftest import Cheating, objections
from tests.support.command import NOT_SCORED, Cli

LOOSE = "near_tie_margin: 0.001"


def test_an_honest_engine_is_green_and_all_of_its_text_was_compared(cheating: Cheating) -> None:
    code, run = cheating("Honest")
    assert (code, objections(run)) == (0, [])
    for comparison in run.comparisons:
        check = comparison.tokens
        # 2 slots × 4 prompt sets × 2 rounds of 6 steps that emit 1 to k + 1 tokens each, and a prefill token.
        assert 16 * 7 < check.compared_tokens == check.emitted_tokens < 16 * (6 * (comparison.cell.role.k + 1) + 1)
        assert check.whole_sets == (0, 1, 2, 3)
        assert check.logits is not None and check.logits.compared > 0 and check.logits.different == 0
    for result in run.cells:
        assert result.rescored is not None and result.rescored.unscored is None
        assert result.rescored.scored >= 64 - 8 and result.rescored.wrong == 0
        if result.cell.role.speculative:
            drafts = result.rescored.drafts
            assert drafts is not None and drafts.unchecked is None
            assert 0 < drafts.claimed == drafts.drafted < drafts.cycles * result.cell.role.k
    assert {"blocks", "text", "logits", "rescoring"} < run.check_seconds.keys()


@pytest.mark.parametrize(
    ("engine", "code"),
    [
        ("NoiseBehindTheComparedTokens", "token_mismatch"),
        ("BaselineThatDoesNotGoOn", "text_not_compared"),
        ("NoModel", "not_the_targets"),
        ("OtherWeights", "not_the_targets"),
        ("OtherLogits", "logits_differ"),
    ],
)
def test_a_cheat_with_its_text_is_invalid(cheating: Cheating, engine: str, code: str) -> None:
    exit_code, run = cheating(engine)
    assert exit_code == 6
    assert code in {v.reason_code for v in objections(run) if v.gate == "tokens"}


def test_a_margin_below_zero_is_no_answer(cheating: Cheating) -> None:
    exit_code, run = cheating("NegativeMargins")
    assert exit_code == 7
    (why,) = run.failures.values()
    assert "malformed answer to ranked" in why and "the larger ones come first" in why


def test_what_lies_behind_a_near_tie_is_scored(cheating: Cheating, cli: Cli) -> None:
    policy = (cli.folder / "policy.yaml").read_text().replace("near_tie_margin: 0.0", LOOSE)
    cli.write("policy.yaml", policy)
    exit_code, run = cheating("NoiseBehindANearTie")
    assert exit_code == 6
    (first, *_) = (v for v in objections(run) if v.gate == "tokens")
    assert first.reason_code == "not_the_targets" and "are not its choice" in first.message


def test_logits_that_differ_are_reported_and_not_judged_where_near_ties_are_allowed(
    cheating: Cheating, cli: Cli
) -> None:
    policy = (cli.folder / "policy.yaml").read_text().replace("near_tie_margin: 0.0", LOOSE)
    cli.write("policy.yaml", policy)
    exit_code, run = cheating("OtherLogits")
    assert exit_code == 0
    assert all(c.tokens.logits is not None and c.tokens.logits.different for c in run.comparisons)
    assert "0 of" in next(v.message for v in run.verdicts if v.gate == "tokens")


def test_a_policy_may_leave_the_second_engine_out_and_every_verdict_then_says_so(cheating: Cheating, cli: Cli) -> None:
    cli.write("policy.yaml", (cli.folder / "policy.yaml").read_text() + NOT_SCORED)
    exit_code, run = cheating("OtherWeights")
    assert exit_code == 0
    messages = [v.message for v in run.verdicts if v.gate == "tokens"]
    assert messages and all("the engine's own word: the policy names no engine" in message for message in messages)


def test_a_baseline_that_says_it_ended_is_held_against_what_was_asked(cheating: Cheating) -> None:
    exit_code, run = cheating("ScriptedEnd")
    assert exit_code == 6
    assert "counter_identity" in {v.reason_code for v in objections(run)}


@pytest.mark.parametrize(
    ("engine", "code", "words"),
    [
        ("AnswersFromMemory", "faster_than_verification", "times the baseline's speed with"),
        ("SleepsInTheBaseline", "slow_where_timed", "where the same text goes on untimed"),
    ],
)
def test_a_speed_up_that_verification_or_the_baselines_own_pace_rules_out_is_invalid(
    cheating: Cheating, engine: str, code: str, words: str
) -> None:
    exit_code, run = cheating(engine)
    assert exit_code == 6
    assert words in {v.reason_code: v.message for v in objections(run)}[code]
