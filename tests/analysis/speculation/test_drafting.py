"""Figures of a short run, against counting by hand; and whether they are those of multi-token speculation."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specgate.analysis.speculation.drafting import drafting_of
from specgate.contract import Block
from tests.analysis.speculation.evidence import served, stepped


@settings(max_examples=30)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=20))
def test_figures_are_those_of_counting_the_steps(accepted: list[int]) -> None:
    drafting = drafting_of(stepped(accepted))
    steps = len(accepted)
    assert (drafting.num_drafts, drafting.undrafted, drafting.drafted) == (steps, 0, 3 * steps)
    assert drafting.acceptance_length == pytest.approx(1 + sum(accepted) / steps)
    assert drafting.steps_with_1 == pytest.approx(sum(a >= 1 for a in accepted) / steps)
    assert drafting.steps_with_2 == pytest.approx(sum(a >= 2 for a in accepted) / steps)
    assert drafting.accepted_at_pos == pytest.approx([sum(a > i for a in accepted) / steps for i in range(3)])
    assert drafting.tok_s == pytest.approx((sum(accepted) + steps) / (steps * 1e-3))


@settings(max_examples=30)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=20), st.integers(0, 9))
def test_a_server_shows_the_same_figures(accepted: list[int], undrafted: int) -> None:
    mine = drafting_of(stepped(accepted))
    theirs = drafting_of(served([accepted.count(i) for i in range(4)], undrafted))
    for name in ("num_drafts", "drafted", "accepted", "acceptance_length", "steps_with_1", "steps_with_2"):
        assert getattr(theirs, name) == getattr(mine, name), name
    assert theirs.undrafted == undrafted


@pytest.mark.parametrize(
    ("block", "state"),
    [
        (stepped([3, 1, 2, 0, 3, 2]), "active"),
        (stepped([1, 0, 1], drafted=1), "single-token"),
        (stepped([1, 0, 1], k=1), "active"),
        (stepped([0] * 20), "next to nothing accepted"),
        (stepped([1] + [0] * 19), "next to nothing accepted"),
        (stepped([0] * 20, drafted=0), "no drafts"),
        (served([0, 0, 0, 0], undrafted=9), "no drafts"),
    ],
)
def test_the_state_is_that_of_the_counts(block: Block, state: str) -> None:
    assert drafting_of(block).state == state


def test_a_loop_is_seen() -> None:
    loop = drafting_of(stepped([3] * 20, tokens=[5, 6, 7, 8] * 20 + [5]))
    assert loop.repeated > 0.9
    assert drafting_of(stepped([3] * 20)).repeated == 0
