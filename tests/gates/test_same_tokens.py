"""The tokens of two runs: the same, not the same, or not comparable."""

from __future__ import annotations

import pytest

from specgate.contract import Rule, State, Verdict
from specgate.contract.comparisons import Contrast, TokenContrast
from specgate.gates.same_tokens import GATE
from tests.support.factories import blocks_of, plan_of, run_of

PLAN = plan_of()
RUN = run_of(PLAN, blocks_of(PLAN))


def verdict(tokens: TokenContrast, role: str = "*") -> Verdict:
    (outcome,) = GATE.judge(Rule("r", "same-tokens", True, role=role), Contrast(RUN, RUN, (), (tokens,), (), ()))
    return outcome


def test_equal_sequences_pass_with_their_number() -> None:
    outcome = verdict(TokenContrast(PLAN.cells[1], 200, 8, 0, None))
    assert outcome.state is State.PASS and "200 tokens of 8 sequences" in outcome.message


def test_one_sequence_that_differs_fails_with_its_place() -> None:
    outcome = verdict(TokenContrast(PLAN.cells[1], 200, 8, 1, 17))
    assert outcome.state is State.FAIL and "1 of 8 sequences differ, the first one at token 17" in outcome.message


@pytest.mark.parametrize("reason", ["prompts_differ", "targets_differ", "acceptance_forced", "not_measured"])
def test_tokens_that_could_not_be_compared_are_not_green(reason: str) -> None:
    outcome = verdict(TokenContrast(PLAN.cells[1], 0, 0, 0, None, reason))
    assert (outcome.state, outcome.reason_code) == (State.INCONCLUSIVE, reason)


def test_a_rule_for_another_role_is_skipped() -> None:
    assert verdict(TokenContrast(PLAN.cells[1], 200, 8, 0, None), role="spec-9").state is State.SKIPPED
