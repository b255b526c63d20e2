"""A server that counts one step per output loses steps where an output holds the tokens of several."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from specgate.analysis.checks.drafting import missed_steps
from specgate.backends.servers.answers import Answer
from specgate.backends.servers.blocks import decoded
from specgate.backends.servers.evidence.tracing import joined_outputs
from specgate.backends.servers.exchange import Reading, SpecCounts, Usage
from specgate.contract import Budget, Finish, Role, ServedRequest
from tests.analysis.checks.test_served import block, plan

K = 3


def answer(*sizes: int, finish: Finish = Finish.LENGTH) -> Answer:
    """A request whose events held so many tokens each."""
    total = sum(sizes)
    times = ServedRequest(0, tuple(range(1, len(sizes) + 1)), sizes)
    return Answer(tuple(range(total)), Usage(8, total), finish, times, None, ())


def counts(*hist: int) -> SpecCounts:
    steps = sum(hist)
    return SpecCounts(steps, K * steps, sum(i * n for i, n in enumerate(hist)), hist)


@pytest.mark.parametrize(
    ("hist", "answers"),
    [
        ((1, 1, 0, 2), [answer(1, 4, 1, 2, 4)]),
        ((1, 1, 0, 2), [answer(1, 4, 1, 2, 3)]),  # the last step was cut by one
        ((0, 0, 1, 2), [answer(1, 4, 1), answer(1, 3)]),  # one of two is cut, by three
        ((0, 0, 0, 1), [answer(5)]),  # the prefill's token and a step's came together: no step is lost
        ((1, 0, 0, 1), [answer(1, 4, finish=Finish.EOS)]),  # the end token's step brings no output
    ],
)
def test_outputs_that_the_counted_steps_explain_are_one_step_each(hist: Sequence[int], answers: list[Answer]) -> None:
    assert joined_outputs(K, counts(*hist), answers) == 0


@pytest.mark.parametrize(
    ("hist", "sizes", "least"),
    [
        ((0, 0, 0, 2), (1, 6, 4), 1),  # more tokens than a step can emit
        ((0, 0, 0, 3), (1, 6, 4, 9), 2),
        ((2, 0, 0, 1), (1, 2, 4, 1), 1),  # two steps of one token each, counted as one of one token
        ((1, 1, 0, 0), (1, 2, 2), 1),  # the last one holds two tokens, and no step is left that emitted two
    ],
)
def test_outputs_that_no_counted_step_explains_are_told(hist: Sequence[int], sizes: Sequence[int], least: int) -> None:
    assert joined_outputs(K, counts(*hist), [answer(*sizes)]) == least


def test_joined_ends_do_not_pass_for_cut_ones() -> None:
    """Found with LMDeploy 0.18: the tokens of a lost step were as many as another request's last step had cut off."""
    both, spec = [answer(1, 4, 6, 2), answer(1, 4, 2)], counts(0, 0, 0, 5)
    made = decoded(Role(K), both, Reading(spec=spec), "here", counts_outputs=True)
    assert made.counters["joined_outputs"] == 1 and "undrafted_steps" not in made.counters


def test_a_server_that_counts_something_else_is_not_judged_by_its_outputs() -> None:
    assert joined_outputs(K, counts(0, 0, 0, 1), [answer(1, 4, 4)]) == 0, "a step without a draft"
    assert joined_outputs(K, SpecCounts(2, 6, 6), [answer(1, 6, 4)]) == 0, "positions are not counted"
    assert joined_outputs(K, counts(0), [answer(1, 1, 1)]) == 0, "nothing was drafted"


def test_lost_steps_are_not_said_to_have_been_without_a_draft() -> None:
    answers, spec = [answer(1, 6, 4)], counts(0, 0, 0, 2)
    made = decoded(Role(K), answers, Reading(spec=spec), "here", counts_outputs=True)
    assert made.counters == {"joined_outputs": 1, "uncounted_tokens": 2}
    assert made.served is not None and made.served.acceptance is not None and made.served.acceptance.emitted == 8
    other = decoded(Role(K), answers, Reading(spec=spec), "here")
    assert other.counters == {"undrafted_steps": 2}, "events of other engines are no outputs"


def test_a_block_that_lost_steps_has_none_that_missed_its_draft() -> None:
    lost = block(plan().rounds[0], Role(K), counters={"joined_outputs": 2, "uncounted_tokens": 3})
    assert missed_steps(lost, Budget(steps=10)) == 0
