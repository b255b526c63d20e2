"""Tokens of a vocabulary of n, against a plain count in Python."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specgate.backends.eagle3.pair_tools.draft_vocab.coverage import Ranking, ranking, tail_of
from specgate.backends.eagle3.pair_tools.train.draft import offsets_and_mask
from specgate.checkpoints.heads.maps import check_d2t
from specgate.errors import UsageError

COUNTS = st.lists(st.integers(0, 5), min_size=2, max_size=20).filter(any)
"""Few different numbers, so that many tokens are counted as often."""


@st.composite
def ranked(draw: st.DrawFn) -> tuple[Tensor, tuple[int, ...], list[int] | None, Ranking]:
    """Counts, tokens that are always kept, tokens that may be chosen, and their ranking."""
    counts = draw(COUNTS)
    ids = st.integers(0, len(counts) - 1)
    kept = tuple(draw(st.sets(ids, max_size=3)))
    among = draw(st.none() | st.sets(ids, min_size=1).map(sorted))
    order = ranking(torch.tensor(counts), kept, None if among is None else torch.tensor(among))
    return torch.tensor(counts), kept, among, order


def by_hand(counts: Tensor, kept: tuple[int, ...], among: list[int] | None) -> list[int]:
    allowed = range(len(counts)) if among is None else among
    return sorted(allowed, key=lambda i: (i not in kept, 0 if i in kept else -int(counts[i]), i))


@settings(max_examples=40)
@given(ranked())
def test_kept_tokens_come_first_then_the_frequent_ones_and_of_a_tie_the_lower_id(
    made: tuple[Tensor, tuple[int, ...], list[int] | None, Ranking],
) -> None:
    counts, kept, among, result = made
    assert result.ids.tolist() == by_hand(counts, kept, among)


@settings(max_examples=40)
@given(ranked())
def test_coverage_never_falls_and_is_the_share_of_the_chosen_tokens(
    made: tuple[Tensor, tuple[int, ...], list[int] | None, Ranking],
) -> None:
    counts, _, _, result = made
    shares = [result.share(n) for n in range(1, len(result.ids) + 1)]
    assert shares == sorted(shares) and shares[-1] <= 1
    for n in range(result.least, len(result.ids) + 1):
        chosen = result.chosen(n)
        assert result.share(n) == sum(int(counts[i]) for i in chosen.tolist()) / int(counts.sum())
        assert round(result.share(n) * int(counts.sum())) + tail_of(counts, chosen).tokens == int(counts.sum())


@settings(max_examples=40)
@given(ranked(), st.integers(1, 1000))
def test_the_size_for_a_share_is_the_smallest_that_holds_it(
    made: tuple[Tensor, tuple[int, ...], list[int] | None, Ranking], permille: int
) -> None:
    counts, _, _, result = made
    enough = [
        n
        for n in range(result.least, len(result.ids) + 1)
        if int(result.covered[n - 1]) * 1000 >= permille * int(counts.sum())
    ]
    assert result.size_for(permille / 1000) == min(enough, default=None)


@settings(max_examples=40)
@given(ranked(), st.data())
def test_offsets_and_mask_of_a_choice_describe_each_other(
    made: tuple[Tensor, tuple[int, ...], list[int] | None, Ranking], data: st.DataObject
) -> None:
    counts, kept, among, result = made
    ids = result.chosen(data.draw(st.integers(result.least, len(result.ids))))
    d2t, t2d = offsets_and_mask(ids, len(counts))
    assert (ids.diff() > 0).all()
    assert (d2t + torch.arange(len(d2t))).tolist() == t2d.nonzero().flatten().tolist() == ids.tolist()
    assert check_d2t(d2t.numpy(), t2d.numpy(), len(counts), "here") == () or not d2t.any()
    assert set(kept) & set(among or kept) <= set(ids.tolist())


def test_sizes_are_powers_of_two_and_the_whole_vocabulary() -> None:
    assert ranking(torch.ones(12, dtype=torch.long)).sizes() == [1, 2, 4, 8, 12]
    assert ranking(torch.ones(12, dtype=torch.long), special=(1, 5, 7)).sizes(6) == [4, 6, 8, 12]


@pytest.mark.parametrize(("size", "why"), [(0, "2 to 5"), (1, "2 to 5"), (6, "2 to 5")])
def test_a_size_that_the_vocabulary_cannot_have_is_refused(size: int, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        ranking(torch.ones(5, dtype=torch.long), special=(0, 4)).chosen(size)


def test_the_tail_says_what_can_never_be_drafted() -> None:
    tail = tail_of(torch.tensor([7, 1, 0, 3, 1]), torch.tensor([0, 2]))
    assert (tail.tokens, tail.distinct, tail.once) == (5, 3, 2)
    assert tail.most == ((3, 3), (1, 1), (4, 1))
