"""The unit in the last place is seen in log-probabilities, as torch rounds logits; other logits lie on no grid."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specgate.analysis.tokens.last_place import gap_between, unit_of


def shown(logits: torch.Tensor, count: int = 20) -> tuple[float, ...]:
    """Return an engine's view of `logits`: the largest log-probabilities, computed in float32."""
    return tuple(logits.float().log_softmax(-1).topk(count).values.tolist())


@given(seed=st.integers(0, 10_000), exponent=st.integers(1, 5), dtype=st.sampled_from([torch.bfloat16, torch.float16]))
def test_the_unit_of_logits_within_one_binade_is_that_of_their_number_format(
    seed: int, exponent: int, dtype: torch.dtype
) -> None:
    source = torch.Generator().manual_seed(seed)
    low = 2.0**exponent
    logits = (low + low * 0.98 * torch.rand(512, generator=source)).to(dtype)
    spacing = torch.finfo(dtype).eps * low
    assert unit_of(shown(logits)) == spacing


def test_where_logits_straddle_a_power_of_two_the_finer_unit_counts() -> None:
    logits = torch.tensor([16.5, 16.25, 15.9375, 15.5, 15.0625, 14.0, 13.0, 12.0, 11.5, 11.0], dtype=torch.bfloat16)
    assert unit_of(shown(logits, 10)) == 2.0**-4


@given(seed=st.integers(0, 1000))
def test_logits_in_float32_lie_on_no_grid(seed: int) -> None:
    assert unit_of(shown(20 * torch.rand(512, generator=torch.Generator().manual_seed(seed)))) is None


@pytest.mark.parametrize("top", [(), (-0.5,), (-0.5, -0.75), (-1.0,) * 20, tuple(-1 - 1e-6 * i for i in range(20))])
def test_too_few_values_or_equal_ones_show_no_unit(top: tuple[float, ...]) -> None:
    assert unit_of(top) is None


def test_the_gap_is_that_of_the_lower_one_of_the_two_tokens() -> None:
    top, tokens = (5.0, 4.5, 4.0, 1.0), (10, 11, 12, 13)
    assert gap_between((10, 11), top, tokens) == 0.5
    assert gap_between((12, 11), top, tokens) == 1.0, "neither of them is the most likely token"
    assert gap_between((10, 99), top, tokens) == math.inf
    assert gap_between((10, 99), top, ()) == 0.5, "an engine that names no tokens shows no more than its two largest"
    assert gap_between((10, 99), (5.0,), ()) is None
