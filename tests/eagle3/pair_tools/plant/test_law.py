from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.backends.eagle3.pair_tools.plant.thresholds import acceptance_length, share_for


@given(st.floats(0.0, 1.0), st.integers(1, 8))
def test_the_share_for_a_length_gives_that_length(share: float, k: int) -> None:
    assert share_for(acceptance_length(share, k), k) == pytest.approx(share, abs=1e-6)


@pytest.mark.parametrize(("share", "k"), [(0.8, 3), (0.6, 5), (0.95, 1)])
def test_the_law_is_what_coin_flips_give(share: float, k: int) -> None:
    generator, cycles, tokens = random.Random(1), 100_000, 0
    for _ in range(cycles):
        accepted = 0
        while accepted < k and generator.random() < share:
            accepted += 1
        tokens += accepted + 1
    assert acceptance_length(share, k) == pytest.approx(tokens / cycles, rel=0.01)


@pytest.mark.parametrize("length", [0.9, 4.1])
def test_a_length_that_no_chain_gives_is_refused_with_the_range(length: float) -> None:
    with pytest.raises(ValueError, match="a chain of 3 drafts gives acceptance lengths from 1 to 4"):
        share_for(length, 3)
