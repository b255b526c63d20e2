"""One unit in the last place of an engine's logits, seen in the gaps between the largest of them.

An engine that computes logits in bfloat16 has them at multiples of 2^(e-7), where 2^e is their magnitude; in float16,
of 2^(e-10). Their differences are multiples, too, and so are the differences of their log-probabilities, since softmax
subtracts the same number from all. So the unit can be seen from outside, without the logits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

FEWEST: Final = 10
"""Values that it takes. A gap is an even number of units half of the time: with nine gaps, all are once in 500 places,
and a unit twice as large is seen. A gap on no grid seems to be on the finest one with a probability of 2 TOLERANCE /
FINEST.
"""
TOLERANCE: Final = 1e-5
"""How far a gap may be from a multiple of the unit, in logits: log-probabilities are rounded to float32."""
COARSEST: Final = 1.0
FINEST: Final = 2.0**-12
"""Units that are looked for, in logits. Below the finest the rounding of log-probabilities would hide them."""


def unit_of(top: Sequence[float]) -> float | None:
    """The largest power of two of which all gaps between neighbours in `top` are multiples.

    `top`: logits or log-probabilities of the most likely tokens at one place, from the largest on. Returns None where
    these are fewer than `FEWEST`, or lie on no grid, as logits in float32 do. Where the logits straddle a power of two,
    the smaller ones have the finer grid, and that is returned: a bound in such units is on the strict side.
    """
    if len(top) < FEWEST:
        return None
    gaps = [a - b for a, b in pairwise(top)]
    unit = COARSEST
    while unit >= FINEST:
        steps = [round(gap / unit) for gap in gaps]
        if any(steps) and all(abs(gap - unit * n) <= TOLERANCE for gap, n in zip(gaps, steps, strict=True)):
            return unit
        unit /= 2
    return None


def gap_between(tokens: Sequence[int], top: Sequence[float], top_tokens: Sequence[int]) -> float | None:
    """Distance of the lowest of `tokens` below the largest logit.

    `top`, `top_tokens`: the largest logits, from the first on, and whose they are. Where the engine does not say whose,
    the two largest are taken for those of `tokens`. Infinite where one of `tokens` is not among them; None where there
    are no two.
    """
    if not top_tokens:
        return top[0] - top[1] if len(top) > 1 else None
    of = dict(zip(top_tokens, top, strict=False))
    return max(top[0] - of.get(token, -math.inf) for token in tokens)
