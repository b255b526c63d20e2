"""Ends of requests that the budget does not allow. The oracle is a decode loop of its own, one token at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.analysis.checks.identities import check_block, check_ends
from specgate.contract import Block, Budget, Finish, Role
from specgate.errors import InvalidResult
from tests.support.factories import block, plan_of, scenario

EOS = (2,)
WHERE = "here"
ROUND = plan_of(scenario()).rounds[-1]


def decoded(tokens: Sequence[int], accepts: Sequence[int], budget: Budget, k: int) -> Block:
    """One slot that decodes `tokens` (the last of them again and again), `accepts` drafts a step, until it ends."""

    def token(index: int) -> int:
        return tokens[min(index, len(tokens) - 1)]

    def end(out: list[int]) -> Finish | None:
        if out[-1] in EOS and not budget.ignore_eos:
            return Finish.EOS
        return Finish.LENGTH if budget.new_tokens is not None and len(out) == budget.new_tokens else None

    out, accepted, truncated = [token(0)], list[int](), 0
    while end(out) is None and len(accepted) != budget.steps:
        accepted.append(min(k, accepts[len(accepted) % len(accepts)]))
        for taken in range(accepted[-1] + 1):
            out.append(token(len(out)))
            if end(out) is not None:
                truncated = accepted[-1] - taken
                break
    made = block(replace(ROUND, order=(Role(k),)), Role(k), steps=len(accepted))
    rows = tuple((a,) for a in accepted)
    return replace(
        made,
        accepted=rows,
        drafted=tuple((k,) for _ in rows),
        tokens=(tuple(out),),
        truncated=(truncated,),
        finish=(end(out) or Finish.STEPS,),
        counters={},
    )


budgets = st.one_of(
    st.builds(Budget, steps=st.integers(1, 9), ignore_eos=st.booleans()),
    st.builds(Budget, new_tokens=st.integers(1, 30), ignore_eos=st.booleans()),
)
texts = st.lists(st.integers(0, 6), min_size=1, max_size=30)
patterns = st.lists(st.integers(0, 5), min_size=1, max_size=5)


@given(texts, patterns, budgets, st.integers(0, 5))
def test_a_loop_that_ends_as_it_should_is_never_objected_to(
    text: list[int], accepts: list[int], budget: Budget, k: int
) -> None:
    made = decoded(text, accepts, budget, k)
    check_block(made, budget)
    check_ends(made, budget, EOS, WHERE)


@given(texts, patterns, budgets, st.integers(1, 5), st.sampled_from(Finish))
def test_another_finish_than_the_loops_own_is_objected_to(
    text: list[int], accepts: list[int], budget: Budget, k: int, finish: Finish
) -> None:
    made = decoded(text, accepts, budget, k)
    # Where EOS comes as the last token that the budget allows, either end is the truth.
    spent = len(made.tokens[0]) == budget.new_tokens or len(made.accepted) == budget.steps
    if finish is made.finish[0] or (spent and made.finish[0] is Finish.EOS):
        return
    with pytest.raises(InvalidResult):
        check_ends(replace(made, finish=(finish,)), budget, EOS, WHERE)


@given(texts, patterns, budgets, st.integers(0, 5), st.integers(1, 9))
def test_more_truncated_tokens_than_the_last_step_lost_break_an_identity(
    text: list[int], accepts: list[int], budget: Budget, k: int, more: int
) -> None:
    made = decoded(text, accepts, budget, k)
    with pytest.raises(InvalidResult):
        check_block(replace(made, truncated=(made.truncated[0] + more,)), budget)


STEPS, LENGTH = Budget(steps=4, ignore_eos=False), Budget(new_tokens=9, ignore_eos=False)


@pytest.mark.parametrize(
    ("budget", "spoil", "says"),
    [
        (STEPS, lambda b: replace(b, truncated=(1,)), "1 truncated tokens, but its finish is steps"),
        (LENGTH, lambda b: replace(b, truncated=(4,)), "4 truncated tokens, but its last step accepted 3"),
        (STEPS, lambda b: replace(b, finish=(Finish.STOP,)), "its finish is stop after 17 tokens, but no stop tokens"),
        (STEPS, lambda b: replace(b, finish=(Finish.LENGTH,)), "length after 17 tokens, but the budget is 4 steps"),
        (STEPS, lambda b: replace(b, finish=(Finish.EOS,)), r"its last token 5 is none of EOS \(2,\)"),
        (LENGTH, lambda b: replace(b, finish=(Finish.STEPS,)), "steps after 2 steps, but the budget is 9 tokens"),
        (
            LENGTH,
            lambda b: replace(b, tokens=((*b.tokens[0], 5),)),
            "length after 10 tokens, but the budget is 9 tokens",
        ),
        (
            STEPS,
            lambda b: replace(b, tokens=((5, 2, *b.tokens[0][2:]),)),
            r"token 1 is EOS \(2\), but 15 more follow it",
        ),
        (Budget(steps=3), lambda b: b, "4 steps ran, but the budget is 3 steps"),
        (Budget(steps=5), lambda b: b, "its finish is steps after 4 steps, but the budget is 5 steps"),
        (Budget(steps=4), lambda b: replace(b, finish=(Finish.EOS,)), "eos after 17 tokens, but EOS is ignored"),
    ],
)
def test_an_end_that_the_budget_does_not_allow_is_named_with_both_figures(
    budget: Budget, spoil: Callable[[Block], Block], says: str
) -> None:
    made = decoded((5,), (3,), LENGTH if budget is LENGTH else STEPS, 3)
    with pytest.raises(InvalidResult, match=f"{WHERE} ?.*{says}"):
        check_ends(spoil(made), budget, EOS, WHERE)
