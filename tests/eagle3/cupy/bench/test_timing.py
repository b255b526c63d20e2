from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specgate.backends.eagle3.cupy.bench.timing import LAUNCHES, TIMES_L2, inputs_to_rotate, time_launches


@given(size=st.integers(1, 1 << 32), l2=st.integers(1 << 16, 1 << 28))
def test_inputs_that_take_turns_are_larger_than_the_cache_together_and_no_more_of_them_than_that_takes(
    size: int, l2: int
) -> None:
    inputs = inputs_to_rotate(size, l2)
    assert inputs >= 2 and inputs * size >= TIMES_L2 * l2
    assert inputs == 2 or (inputs - 1) * size < TIMES_L2 * l2


@pytest.mark.gpu
@pytest.mark.parametrize("inputs", [2, 5, LAUNCHES, LAUNCHES + 3])
def test_every_input_is_launched_on_equally_often(inputs: int) -> None:
    from specgate.backends.eagle3.cupy.stream import Stream

    launched = torch.zeros(inputs, 64, device="cuda")
    timing = time_launches(lambda i: launched[i].add_(1), inputs, Stream())
    assert timing.latency_us > 0 and timing.spread >= 0
    assert float(launched[0, 0]) >= 2 and torch.equal(launched, launched[:1].expand_as(launched))
