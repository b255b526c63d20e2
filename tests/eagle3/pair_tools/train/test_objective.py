"""Labels, loss, survival and the draft vocabulary, against direct counts."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from specgate.backends.eagle3.pair_tools.train.draft import coverage, draft_vocabulary, offsets_and_mask
from specgate.backends.eagle3.pair_tools.train.loop import LOWEST_RATE, labels_from, rate_factor, step_loss, survival
from specgate.backends.eagle3.pair_tools.train.recipe import Recipe, Strand
from specgate.errors import UsageError


def test_the_label_of_a_row_is_the_targets_distribution_one_position_later() -> None:
    logits = torch.randn(1, 5, 10)
    ids = torch.tensor([1, 4, 7])
    labels = labels_from(logits, ids, 0.5, torch.ones(1, 5, dtype=torch.bool))
    assert torch.equal(labels.logits[0, :4], logits[0, 1:, ids] / 0.5)
    assert labels.counted.tolist() == [[True, True, True, True, False]]


def test_a_token_outside_the_draft_vocabulary_is_no_label() -> None:
    logits = torch.zeros(1, 3, 10)
    logits[0, 1, 4] = 1.0
    logits[0, 2, 5] = 1.0
    labels = labels_from(logits, torch.tensor([1, 4, 7]), 1.0, torch.ones(1, 3, dtype=torch.bool))
    assert labels.best[0, :2].tolist() == [1, -1]
    assert labels.coverage.item() == 0.5


def test_the_loss_is_the_cross_entropy_of_the_counted_rows() -> None:
    logits, label_logits = torch.randn(2, 4, 6), torch.randn(2, 4, 6)
    counted = torch.tensor([[True, False, True, True], [False, False, True, False]])
    loss, guess = step_loss(logits, label_logits, counted)
    expected = F.cross_entropy(logits[counted], label_logits[counted].softmax(-1))
    torch.testing.assert_close(loss, expected)
    assert torch.equal(guess, logits.argmax(-1))


def test_a_chain_survives_only_where_every_step_was_right() -> None:
    first = torch.tensor([[True, False, True, True]])
    second = torch.tensor([[True, True, True, True]])
    assert survival(second, first).tolist() == [[False, True, False, True]]


@given(st.lists(st.integers(0, 20), min_size=5, max_size=30), st.data())
def test_no_token_left_out_is_more_frequent_than_one_taken_in(counts: list[int], data: st.DataObject) -> None:
    size = data.draw(st.integers(1, len(counts)))
    ids = draft_vocabulary(torch.tensor(counts), size).tolist()
    left_out = set(range(len(counts))) - set(ids)
    assert ids == sorted(set(ids)) and len(ids) == size
    assert min(counts[i] for i in ids) >= max((counts[i] for i in left_out), default=0)


@given(st.sets(st.integers(0, 49), min_size=1, max_size=50))
def test_offsets_and_mask_describe_the_same_vocabulary(chosen: set[int]) -> None:
    ids = torch.tensor(sorted(chosen))
    d2t, t2d = offsets_and_mask(ids, 50)
    assert (torch.arange(len(ids)) + d2t).tolist() == sorted(chosen)
    assert t2d.nonzero().flatten().tolist() == sorted(chosen)


def test_coverage_is_the_share_of_counted_tokens() -> None:
    tokens = Counter({0: 6, 3: 3, 5: 1})
    counts = torch.tensor([tokens[i] for i in range(6)])
    assert coverage(counts, torch.tensor([0, 3])) == pytest.approx(0.9)


def test_a_draft_vocabulary_beyond_the_targets_is_refused() -> None:
    with pytest.raises(UsageError, match="draft vocabulary of 7"):
        draft_vocabulary(torch.ones(6), 7)


def test_rates_rise_then_fall_to_their_lowest() -> None:
    assert rate_factor(0, 0.0, 10) == pytest.approx(0.1)
    assert rate_factor(50, 0.0, 10) == 1.0
    assert rate_factor(50, 1.0, 10) == pytest.approx(LOWEST_RATE)


@pytest.mark.parametrize("length", [{}, {"steps": 1, "minutes": 1.0}])
def test_a_recipe_needs_steps_or_minutes(length: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="--steps"):
        Recipe(**length)  # type: ignore[arg-type]  # steps is an int in the cases above


def test_sequences_that_cannot_be_cut_into_pieces_are_refused() -> None:
    with pytest.raises(UsageError, match="1500 tokens"):
        Recipe(steps=1, strands=(Strand(1500, 1.0),))
