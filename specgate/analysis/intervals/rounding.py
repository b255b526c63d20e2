"""Figures with as many decimals as a reader needs to see on which side of a bound they lie."""

from __future__ import annotations

from typing import Final

MORE_DIGITS: Final = 3
"""What differs by less than a thousandth of the last decimal differs in nothing that a reader needs."""


def told_from(bound: float, value: float, digits: int) -> str:
    """`value` with `digits` decimals, or with as many more, up to `MORE_DIGITS`, as show on which side of `bound` it
    lies.
    """
    value, bound = (float(f"{number:.12g}") for number in (value, bound))  # 100 · 0.29 is 28.999999999999996
    texts = [f"{value:.{digits + more}f}" for more in range(MORE_DIGITS + 1)]
    right = (value > bound, value < bound)
    return next((text for text in texts if (float(text) > bound, float(text) < bound) == right), texts[0])
