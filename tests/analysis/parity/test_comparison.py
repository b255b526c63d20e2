"""Distances, tolerances and what two tensors give away."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from specgate.analysis.parity.causes import different_ids, usual_causes
from specgate.analysis.parity.comparison import compare
from specgate.analysis.parity.distances import distance, leading
from specgate.analysis.parity.tolerances import SIGNIFICAND, coarser, step_of, tolerance
from specgate.checkpoints.stages.dump import Dtype, StageDump
from specgate.checkpoints.stages.names import STAGES, hidden
from tests.checkpoints.stages.test_file import as_dump, whole

DTYPES: Any = sorted(SIGNIFICAND)
NUMBERS = st.floats(-1e3, 1e3, width=32)
PAIRS = arrays(np.float32, (2, 3, 5), elements=NUMBERS)


@settings(max_examples=30)
@given(PAIRS)
def test_distances_are_those_of_torch(pair: Any) -> None:
    a, b = pair
    u, v = torch.from_numpy(a).double(), torch.from_numpy(b).double()
    result = distance(a, b)
    assert result.mean_abs == pytest.approx(float((u - v).abs().mean()))
    assert result.max_abs == float((u - v).abs().max())
    lengths = torch.maximum(u.norm(dim=1), v.norm(dim=1))
    errors = torch.where(lengths > 0, (u - v).norm(dim=1) / lengths, 0)
    assert result.worst_error == pytest.approx(float(errors.max()))
    assert result.error == pytest.approx(float(errors.square().mean().sqrt()))
    assert result.error <= result.worst_error * (1 + 1e-12)
    cosines = torch.nn.functional.cosine_similarity(u, v, dim=1, eps=1e-300)
    for row in range(3):
        if a[row].any() and b[row].any():
            assert result.worst_cosine <= float(cosines[row]) + 1e-9


@settings(max_examples=30)
@given(PAIRS)
def test_distance_has_no_direction_and_nothing_is_far_from_itself(pair: Any) -> None:
    a, b = pair
    assert distance(a, b) == distance(b, a)
    same = distance(a, a)
    assert (same.max_abs, same.worst_error) == (0, 0) and same.worst_cosine == pytest.approx(1)


@settings(max_examples=30)
@given(PAIRS, st.integers(1, 5))
def test_leading_tokens_are_those_of_a_sort(pair: Any, k: int) -> None:
    a, b = pair
    result = leading(a, b, k, "float32")
    shares = []
    for x, y in zip(a, b, strict=True):
        of_x, of_y = ({*np.argsort(-row, kind="stable")[:k].tolist()} for row in (x, y))
        shares.append(len(of_x & of_y) / k)
    assert result.overlap == pytest.approx(float(np.mean(shares))) and result.worst_overlap == min(shares)
    assert leading(a, a, k, "float32").beyond_one_step == 0


def test_a_rank_within_one_step_of_the_dtype_is_a_near_tie() -> None:
    a, near, far = (np.array([[8.0, second, 7.5]], np.float32) for second in (8 + 2**-5, 8 - 2**-4, 7.75))
    assert step_of(8.0, "bfloat16") == 2**-4
    assert leading(a, near, 1, "bfloat16").overlap == 0
    assert leading(a, near, 1, "bfloat16").beyond_one_step == 0
    assert leading(a, far, 1, "bfloat16").beyond_one_step == 1  # in A the two are half a step apart, in B four
    assert leading(a, near, 1, "float32").beyond_one_step == 2


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=30)
@given(value=st.floats(1e-6, 1e4))
def test_a_step_is_the_gap_to_the_next_number(dtype: Dtype, value: float) -> None:
    kind = getattr(torch, dtype)
    if dtype == "float16":
        value = max(value, 1e-4)  # below, numbers are subnormal
    here = torch.tensor(value).to(kind)
    exact = float(torch.finfo(kind).eps) * 2.0 ** math.floor(math.log2(float(here)))
    assert step_of(float(here), dtype) == exact


def test_tolerances_grow_along_the_pass_and_shrink_with_bits() -> None:
    order = [hidden(b) for b in range(3)] + [s.name for s in STAGES if s.part == "draft"]
    for dtype in DTYPES:
        along = [tolerance(name, 2, 64, dtype) for name in order]
        assert along == sorted(along) and along[-1] <= 0.2
    assert tolerance("draft.logits", 2, 64, "float32") < 1e-4 < tolerance("draft.logits", 2, 64, "float16")
    assert tolerance("draft.logits", 80, 64, "bfloat16") == 0.2
    assert coarser("float16", "bfloat16") == "bfloat16"


def altered(name: str, tensor: Any) -> StageDump:
    return as_dump(whole() | {name: tensor}, "B")


def test_a_single_bad_row_departs_although_the_others_agree() -> None:
    tensors = whole(tokens=80, rows=64)
    bad = tensors["draft.fc_out"].copy()
    bad[3] *= 1 + 2e-3
    comparison = compare(as_dump(tensors), as_dump(tensors | {"draft.fc_out": bad}, "B"))
    assert comparison.first is not None and comparison.first.stage == "draft.fc_out"
    assert comparison.first.worst_position == 78 - 63 + 3
    assert not [stage for stage in comparison.stages if stage.departs and stage.stage != "draft.fc_out"]


def test_rows_are_compared_from_the_last_position_back() -> None:
    long, short = whole(tokens=9, rows=7), {}
    for name, tensor in long.items():
        short[name] = tensor[-3:] if tensor.ndim == 2 else tensor
    comparison = compare(as_dump(long), as_dump(short, "B"))
    assert comparison.agrees and {stage.rows for stage in comparison.stages} == {1, 3}


def test_a_factor_loosens_every_tolerance() -> None:
    a = whole()
    b = altered("draft.fc_out", a["draft.fc_out"] * np.float32(1.001))
    assert not compare(as_dump(a), b).agrees
    assert compare(as_dump(a), b, 1000).agrees


@pytest.mark.parametrize(
    ("ids", "kind"),
    [
        ([1, 3, 5, 7, 9], "off by a constant"),
        ([0, 1, 2, 3, 4], "offsets in B"),
        ([0, 3, 6, 9, 12], "offsets in A"),
        ([0, 2, 4, 6, 9], "other ids"),
    ],
)
def test_maps_that_differ_are_told_apart(ids: list[int], kind: str) -> None:
    tensors = whole()
    result = different_ids(as_dump(tensors), as_dump(tensors | {"draft.target_ids": np.array(ids)}, "B"))
    assert result is not None and result.kind == kind
    assert different_ids(as_dump(tensors), as_dump(tensors)) is None


def test_every_stage_has_usual_causes() -> None:
    for name in [stage.name for stage in STAGES] + [hidden(0), hidden(7)]:
        assert usual_causes(name)
