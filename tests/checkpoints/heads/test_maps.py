"""The draft-to-target map: offsets in range, each target token once, in agreement with the mask."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from specgate.checkpoints.heads.maps import BadMap, check_d2t, check_map, mask_of, offsets_of
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


# ── types ────────────────────────────────────────────────────────────────────────────────────────────────────────────

WIDE = 100_000
IDS = [*range(2, 150), *range(500, 520), *range(33_300, 33_310), *range(70_000, 70_050), *range(90_000, 90_030)]
STORED_AS = {"I64": np.int64, "I32": np.int32, "U32": np.uint32, "F64": np.float64, "F32": np.float32}


@pytest.mark.parametrize("dtype", STORED_AS)
def test_offsets_are_read_from_any_type_that_holds_them(dtype: str) -> None:
    d2t = offsets_of(offsets(IDS).astype(STORED_AS[dtype]), dtype, "draft")
    assert (d2t.dtype, d2t.tolist()) == (np.dtype(np.int64), offsets(IDS).tolist())
    assert check_map(d2t, mask(IDS, WIDE), dtype, WIDE, "draft") == ()


@pytest.mark.parametrize(("dtype", "kind"), [("I8", np.int8), ("U8", np.uint8), ("I16", np.int16), ("U16", np.uint16)])
@pytest.mark.parametrize("with_mask", [False, True])
def test_offsets_that_wrapped_in_a_narrow_type_are_told_as_that(dtype: str, kind: type, with_mask: bool) -> None:
    d2t = offsets_of(offsets(IDS).astype(kind), dtype, "draft")
    with pytest.raises(
        BadMap, match=rf"d2t is of type {dtype}, which holds at most \d+: larger offsets have wrapped\n.*int64"
    ):
        check_map(d2t, mask(IDS, WIDE) if with_mask else None, dtype, WIDE, "draft")


def test_a_narrow_type_that_nothing_confirms_is_a_warning() -> None:
    d2t = offsets([1, 2, 5, 6, 70_000, 70_001]).astype(np.uint16).astype(np.int64)
    (warning,) = check_map(d2t, None, "U16", WIDE, "draft")
    assert "d2t is of type U16, and no t2d shows that offsets above 65535 have not wrapped" in warning


@pytest.mark.parametrize(("dtype", "kind"), [("I8", np.int8), ("U8", np.uint8)])
def test_narrow_types_will_do_where_the_vocabulary_is_small(dtype: str, kind: type) -> None:
    ids = [1, 2, 5, 6, 30, 31]
    d2t = offsets_of(offsets(ids).astype(kind), dtype, "draft")
    assert check_map(d2t, None, dtype, VOCAB, "draft") == () and d2t.tolist() == offsets(ids).tolist()


@pytest.mark.parametrize(
    ("dtype", "values"), [("F16", [0, 1, 2050]), ("BF16", [0, 300]), ("F32", [0.5, 1]), ("F32", [0, np.nan])]
)
def test_floats_that_round_are_no_offsets(dtype: str, values: list[float]) -> None:
    with pytest.raises(BadMap, match=f"d2t is of type {dtype}, .*rounded\n.*int64"):
        offsets_of(np.array(values, np.float32), dtype, "draft")


def test_a_mask_is_no_table_of_offsets() -> None:
    with pytest.raises(BadMap, match="d2t is of type BOOL, as a mask is"):
        offsets_of(mask([1, 2]), "BOOL", "draft")


@pytest.mark.parametrize("kind", [np.uint8, np.int64, np.float32])
def test_a_mask_may_be_ones_and_zeros_of_any_type(kind: type) -> None:
    assert mask_of(mask([3, 4]).astype(kind), "any", "draft").tolist() == mask([3, 4]).tolist()


@pytest.mark.parametrize("values", [[0, 1, 2], [-1, 0, 1], [0.5, 1, 0]])
def test_a_mask_of_other_numbers_is_refused(values: list[float]) -> None:
    with pytest.raises(BadMap, match=r"t2d\[\d\] = .*\n.*with 1 or 0"):
        mask_of(np.array(values), "F64", "draft")


# ── maps that nobody filled ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("marked", [[], [3, 4, 9, 10], list(range(VOCAB))])
def test_zeros_beside_another_mask_were_never_filled(marked: list[int]) -> None:
    with pytest.raises(BadMap, match=rf"never filled: d2t is 0 everywhere, t2d marks {len(marked)} of 40"):
        check_d2t(np.zeros(4, np.int64), mask(marked), VOCAB, "draft")


@pytest.mark.parametrize("marked", [[3, 4, 9, 10], [0, 1, 2, 7], list(range(20, 40))])
def test_a_count_beside_another_mask_was_never_filled(marked: list[int]) -> None:
    with pytest.raises(BadMap, match=rf"never filled: d2t is 0, 1, … 3, t2d marks {len(marked)} of 40"):
        check_d2t(np.arange(4), mask(marked), VOCAB, "draft")


@pytest.mark.parametrize("t2d", [None, mask([0, 1, 2, 3])])
def test_zeros_alone_are_a_warning(t2d: NDArray[np.bool_] | None) -> None:
    (warning,) = check_d2t(np.zeros(4, np.int64), t2d, VOCAB, "draft")
    assert "probably never filled" in warning and "only the first 4 of 40" in warning


@pytest.mark.parametrize("t2d", [None, mask([]), mask(list(range(VOCAB)))])
def test_zeros_over_the_whole_vocabulary_are_the_identity(t2d: NDArray[np.bool_] | None) -> None:
    assert check_d2t(np.zeros(VOCAB, np.int64), t2d, VOCAB, "draft") == ()


@pytest.mark.parametrize("t2d", [None, mask(list(range(VOCAB)))])
def test_a_table_of_all_ids_is_absolute(t2d: NDArray[np.bool_] | None) -> None:
    with pytest.raises(BadMap, match=r"absolute target ids\n.*subtract arange"):
        check_d2t(np.arange(VOCAB), t2d, VOCAB, "draft")
