"""Drafts that are missing, counted from the steps; and acceptance lengths that leave these steps out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.analysis.checks.drafting import inflated_length, left_multi_token_mode, missed_steps, short_steps
from specgate.analysis.checks.identities import check_drafts
from specgate.contract import Block, Budget, CellResult, Role, Rule, Served, State
from specgate.errors import InvalidResult
from specgate.gates import acceptance, validity
from tests.support.factories import block, blocks_of, plan_of, run_of, scenario, text

BUDGET = Budget(steps=12)
ROUND = plan_of(scenario()).rounds[-1]


def of_steps(accepted: list[int], drafted: list[int], **counters: int) -> Block:
    made = block(ROUND, Role(3), steps=len(accepted))
    tokens = (text(3, 0, 1 + sum(accepted) + len(accepted)),)
    rows = [tuple((n,) for n in counts) for counts in (accepted, drafted)]
    return replace(made, accepted=rows[0], drafted=rows[1], tokens=tokens, counters=counters)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12))
def test_every_step_with_fewer_drafts_than_k_is_counted(drafted: list[int]) -> None:
    made = of_steps([0] * len(drafted), drafted)
    assert short_steps(made, BUDGET) == left_multi_token_mode([made], BUDGET) == sum(d < 3 for d in drafted)
    assert missed_steps(made, BUDGET) == drafted.count(0)


def test_a_draft_that_could_not_be_used_explains_its_steps_and_no_more() -> None:
    assert short_steps(of_steps([0] * 4, [0, 0, 3, 2], disabled_draft_error=2), BUDGET) == 1


def test_chains_that_were_ended_on_purpose_explain_their_steps_and_no_more() -> None:
    made = of_steps([0] * 4, [1, 2, 3, 2], chains_ended_early=2)
    assert short_steps(made, BUDGET) == 1
    check_drafts(made, "here")


def test_a_chain_that_its_limit_ended_pays_for_no_other_step() -> None:
    """Of 4 tokens the second step has room for one draft, and makes it: the first had room for two, and made none."""
    made = of_steps([0, 0, 0], [0, 1, 3], chains_ended_early=1)
    assert short_steps(made, Budget(new_tokens=4)) == 1


def test_a_step_without_a_draft_is_no_chain_that_was_ended() -> None:
    """An engine that drafts in every other step cannot pass its pauses off as short chains."""
    made = of_steps([0] * 4, [0, 3, 0, 2], chains_ended_early=2)
    with pytest.raises(InvalidResult, match="chains_ended_early = 2, but 1 request-steps drafted fewer than K tokens"):
        check_drafts(made, "here")


@pytest.mark.parametrize(
    ("new_tokens", "drafted", "short"),
    [(6, [3, 0], 0), (6, [3, 3], 0), (7, [3, 1], 0), (7, [3, 0], 1), (9, [3, 3], 0), (9, [3, 2], 1)],
)
def test_a_step_needs_no_drafts_that_its_limit_has_no_room_for(new_tokens: int, drafted: list[int], short: int) -> None:
    """The first step leaves 1 + 4 tokens behind it, so the second has room for `new_tokens` - 5."""
    assert short_steps(of_steps([3, 0], drafted), Budget(new_tokens=new_tokens)) == short


def test_an_engines_own_count_is_taken_where_it_is_the_larger_one() -> None:
    honest = of_steps([0, 0], [3, 3])
    assert left_multi_token_mode([honest, replace(honest, counters={"disabled_multitoken_other": 2})], BUDGET) == 2
    silent = of_steps([0, 0], [0, 3], disabled_multitoken_other=0)
    assert left_multi_token_mode([silent], BUDGET) == 1
    of_a_server = replace(honest, served=Served(()))
    assert left_multi_token_mode([of_a_server], BUDGET) is None
    assert left_multi_token_mode([replace(of_a_server, counters={"disabled_multitoken_other": 2})], BUDGET) == 2


def hiding(share: int) -> CellResult:
    """A spec cell that drafts in every `share`-th step, is then right three times of three, and says nothing of the
    other steps but that they had no draft.
    """

    def hide(b: Block) -> Block:
        drafted = [3 if step % share == 0 else 0 for step in range(12)]
        made = of_steps(drafted, drafted)
        return replace(b, accepted=made.accepted, drafted=made.drafted, tokens=made.tokens, counters={})

    plan = plan_of()
    return run_of(plan, blocks_of(plan, change=lambda b: hide(b) if b.role.speculative else b)).cells[1]


def test_an_acceptance_length_that_leaves_steps_out_is_invalid_with_both_figures() -> None:
    """By hand: 12 steps, four of them with 3 of 3 accepted drafts: 4 tokens a drafted step, 24 / 12 over all."""
    result = hiding(3)
    assert inflated_length(result) == (4.0, 2.0)
    plan = plan_of()
    run = replace(run_of(plan, blocks_of(plan)), cells=(result,))
    for gate in (acceptance.GATE, validity.GATE):
        (verdict,) = gate.judge(Rule("rule", gate.name, True, params={"min": 1.0}), run)
        assert (verdict.state, verdict.reason_code) == (State.INVALID, "steps_left_out")
        assert "acceptance length 4.000" in verdict.message and "2.000 tokens per step" in verdict.message


def test_an_engine_that_always_drafts_inflates_nothing() -> None:
    result = hiding(1)
    assert "undrafted_steps" not in result.values and inflated_length(result) is None


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.integers(1, 30))
def test_real_ends_inflate_nothing(accepts: list[int], cut: int) -> None:
    """A request that ends at its limit has truncated tokens, and its acceptance length counts them in both figures."""
    emitted = 1 + sum(accepts) + len(accepts)
    cut = min(cut, accepts[-1])
    made = of_steps(accepts, [3] * len(accepts))
    made = replace(made, tokens=(made.tokens[0][: emitted - cut],), truncated=(cut,))
    assert missed_steps(made, Budget(new_tokens=emitted - cut)) == 0
