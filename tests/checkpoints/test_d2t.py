"""The draft-to-target map: offsets in range, each target token once, in agreement with the mask."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from specgate.checkpoints.heads.maps import check_d2t
from specgate.errors import CheckpointError

VOCAB = 40


def offsets(ids: list[int]) -> NDArray[np.int64]:
    return np.array(ids, dtype=np.int64) - np.arange(len(ids))


def mask(ids: list[int], vocab: int = VOCAB) -> NDArray[np.bool_]:
    marked = np.zeros(vocab, dtype=np.bool_)
    marked[ids] = True
    return marked


@st.composite
def vocabularies(draw: st.DrawFn) -> list[int]:
    """Ascending target ids, two neighbours among them, as in any vocabulary chosen by frequency. Id 0 is left out: the
    first ids of all are what a map looks like that nobody filled.
    """
    ids = draw(st.sets(st.integers(1, VOCAB - 1), min_size=1))
    first = draw(st.integers(1, VOCAB - 2))
    return sorted(ids | {first, first + 1})


@settings(deadline=None)
@given(vocabularies(), st.booleans())
def test_the_offsets_of_any_vocabulary_pass_without_warnings(ids: list[int], with_mask: bool) -> None:
    assert check_d2t(offsets(ids), mask(ids) if with_mask else None, VOCAB, "draft") == ()


@settings(deadline=None)
@given(vocabularies())
def test_a_table_of_absolute_ids_is_refused_with_and_without_a_mask(ids: list[int]) -> None:
    for t2d in (mask(ids), None):
        with pytest.raises(CheckpointError, match=r"absolute target ids\n.*offsets"):
            check_d2t(np.array(ids), t2d, VOCAB, "draft")


def test_the_mask_tells_rising_offsets_from_absolute_ids() -> None:
    ids = [0, 2, 4, 6]
    assert check_d2t(offsets(ids), mask(ids), VOCAB, "draft") == ()
    with pytest.raises(CheckpointError, match="absolute target ids"):
        check_d2t(offsets(ids), None, VOCAB, "draft")


@settings(deadline=None)
@given(vocabularies(), st.data())
def test_an_entry_out_of_range_is_named_with_its_value(ids: list[int], data: st.DataObject) -> None:
    i = data.draw(st.integers(0, len(ids) - 1))
    wrong = data.draw(st.integers(-9, -1) | st.integers(VOCAB, VOCAB + 9))
    d2t = offsets(ids)
    d2t[i] = wrong - i
    message = rf"^draft: d2t\[{i}\] = {wrong - i} gives target id {wrong}, outside|^draft: d2t looks like .* absolute"
    with pytest.raises(CheckpointError, match=message):
        check_d2t(d2t, mask(ids), VOCAB, "draft")


def test_entries_out_of_range_are_counted() -> None:
    with pytest.raises(CheckpointError, match=r"d2t\[1\] = 99 gives target id 100, outside the vocabulary of 40 \(2"):
        check_d2t(np.array([0, 99, 99, 0]), None, VOCAB, "draft")


def test_a_target_token_that_occurs_twice_is_refused() -> None:
    with pytest.raises(CheckpointError, match="d2t maps 4 draft tokens to 3 target tokens"):
        check_d2t(offsets([3, 5, 5, 9]), None, VOCAB, "draft")


@settings(deadline=None)
@given(st.data())
def test_a_permuted_vocabulary_passes_with_a_warning(data: st.DataObject) -> None:
    ids = data.draw(vocabularies())
    permuted = data.draw(st.permutations(ids).filter(lambda p: p != ids))
    (warning,) = check_d2t(offsets(permuted), mask(ids), VOCAB, "draft")
    assert warning.startswith("draft: d2t is not in ascending order")


def test_a_mask_of_another_size_of_vocabulary_is_refused() -> None:
    with pytest.raises(CheckpointError, match="t2d marks 4 tokens, d2t maps 3"):
        check_d2t(offsets([3, 4, 9]), mask([3, 4, 9, 11]), VOCAB, "draft")


def test_a_mask_of_other_tokens_is_refused_with_the_first_of_them() -> None:
    with pytest.raises(CheckpointError, match="d2t maps draft token 1 to 4, which t2d does not mark"):
        check_d2t(offsets([3, 4, 9]), mask([3, 5, 9]), VOCAB, "draft")
