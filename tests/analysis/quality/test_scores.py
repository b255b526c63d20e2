"""The interval of a paired difference: published values, and coverage by enumeration."""

from __future__ import annotations

from itertools import product
from math import comb

import pytest

from specgate.analysis.quality.scores import Pairs, wilson


@pytest.mark.parametrize(
    ("both", "won", "lost", "neither", "low", "high"),
    [(36, 12, 2, 0, 0.0569, 0.3404), (36, 14, 0, 0, 0.1528, 0.4167), (0, 29, 0, 1, 0.7915, 0.9941)],
)
def test_the_interval_is_newcombes(both: int, won: int, lost: int, neither: int, low: float, high: float) -> None:
    """Method 10 in Newcombe (1998), Statistics in Medicine 17, 2635-2650."""
    assert Pairs(both, lost, won, neither).interval() == pytest.approx((low, high), abs=5e-5)
    swapped = Pairs(both, won, lost, neither).interval()
    assert swapped == pytest.approx((-high, -low), abs=5e-5)


def test_a_share_of_none_has_wilsons_interval() -> None:
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=5e-5)


@pytest.mark.parametrize(("lost", "won"), [(0.05, 0.05), (0.2, 0.1), (0.02, 0.02)])
def test_the_interval_covers_the_true_change_as_often_as_it_says(lost: float, won: float) -> None:
    n, right = 20, 0.6
    neither = 1 - right - lost - won
    covered = 0.0
    for a, b in product(range(n + 1), repeat=2):
        for c in range(n + 1 - a - b) if a + b <= n else ():
            low, high = Pairs(c, a, b, n - a - b - c).interval()
            if low <= won - lost <= high:
                ways = comb(n, a) * comb(n - a, b) * comb(n - a - b, c)
                covered += ways * lost**a * won**b * right**c * neither ** (n - a - b - c)
    assert covered >= 0.93
