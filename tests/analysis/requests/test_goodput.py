"""The interval of goodput: wrong as seldom as it says where misses come in clusters."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.analysis.requests.goodput import share_bounds
from specgate.analysis.requests.percentiles import Blocks, neighbours_factor

KEPT, MISSED = 0.5, 2.0


def bounds(kept: list[list[bool]], error: float = 0.0035) -> tuple[float, float] | None:
    blocks = Blocks.of([[KEPT if one else MISSED for one in block] for block in kept])
    return share_bounds(blocks, error) if blocks else None


@pytest.mark.parametrize("shape", [(0.95, 0.5), (0.95, 0.1), (0.8, 0.5)])
def test_blocks_that_miss_together_pass_and_fail_wrongly_as_seldom_as_it_says(shape: tuple[float, float]) -> None:
    """400 runs of 48 blocks, each with its own share (beta); 2.5 % a side, where Clopper and Pearson's interval of an
    effective number is wrong in up to 10 %. More than 19 of 400 would lie three standard errors out.
    """
    from scipy.stats import beta

    share, icc = shape
    noise, size = np.random.default_rng(11), 1 / icc - 1
    wrong = [0, 0]
    for _ in range(400):
        own = beta.rvs(share * size, (1 - share) * size, size=(48, 1), random_state=noise)
        made = bounds((noise.random((48, 16)) < own).tolist(), 0.025)
        assert made is not None
        wrong[0] += made[0] > share
        wrong[1] += made[1] < share
    assert max(wrong) <= 19


@given(st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=8, max_size=24))
def test_a_bound_is_the_t_interval_of_the_shares_of_one_block_more(kept: list[list[bool]]) -> None:
    from scipy.stats import sem, t

    shares = np.array([sum(block) / 4 for block in kept])
    factor = neighbours_factor(shares - shares.mean())
    low, high = (
        np.mean(more) + sign * factor * t.ppf(1 - 0.0035, len(shares)) * sem(more)
        for sign, more in ((-1, [*shares, 0.0]), (1, [*shares, 1.0]))
    )
    made = bounds(kept)
    if low <= 0 and high >= 1:
        assert made is None
    else:
        assert made == pytest.approx((max(0, low), min(1, high)), abs=1e-9)


def test_the_other_answer_has_the_mirrored_interval() -> None:
    noise = np.random.default_rng(3)
    kept = (noise.random((64, 8)) < 0.9).tolist()
    one, other = bounds(kept), bounds([[not x for x in block] for block in kept])
    assert one is not None and other is not None
    assert one == pytest.approx((1 - other[1], 1 - other[0]))


def test_a_slow_state_of_many_blocks_widens_the_interval() -> None:
    noise = np.random.default_rng(8)
    states = noise.random((128, 8)) < np.repeat([0.95, 0.4] * 4, 16)[:, None]
    one, other = (bounds(of.tolist()) for of in (noise.permutation(states), states))
    assert one is not None and other is not None and one[0] - other[0] > 0.1


def test_a_state_that_has_not_yet_missed_a_limit_is_seen_in_the_times() -> None:
    """All requests keep to the limit. How long they take shows that neighbouring blocks are alike."""
    noise = np.random.default_rng(1)
    times = np.repeat([0.2, 0.8] * 4, 16)[:, None] + 0.1 * noise.random((128, 8))
    known = [Blocks.of(of.tolist()) for of in (times, noise.permutation(times))]
    (low, one), (higher, other) = (share_bounds(of, 0.0035) or (0.0, 0.0) for of in known if of is not None)
    assert one == other == 1.0 and low < higher - 0.02


def test_two_blocks_and_shares_of_every_size_have_no_interval() -> None:
    assert bounds([[True] * 8, [True] * 8]) is None and bounds([]) is None
    assert bounds([[True], [False], [True]]) is None, "every share would lie inside"
    refused = Blocks.of([[KEPT, math.inf]] * 64)
    assert refused is not None and share_bounds(refused, 0.0035) is not None
