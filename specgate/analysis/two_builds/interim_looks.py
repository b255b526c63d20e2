"""Share the error of a comparison that may be extended among the looks at it.

A comparison is judged after so many process pairs. Where the word is CANNOT TELL, more pairs may be added, and all of
them are judged again. Every look spends a share of the error of its own, and the shares sum up to less than the whole.
So the chance that any look says a wrong word is at most the error of one comparison (Bonferroni), however often it is
extended. That holds for numbers of pairs that do not depend on what was seen. Chosen by the noise that was seen, as the
printed command does it, they cost at the worst 3 % of the error more (0.515 for 0.5 %, normal approximation). The first
word that is not CANNOT TELL is final.
"""

from __future__ import annotations

from typing import Final

FIRST: Final = 0.8
"""The share of the first look, and the share of what is left that each later look spends.

Most comparisons end at the first look, and it pays for all others: with a half, as `intervals.levels.spent` has it, it
would see a change of 1 % less often (`python -m bench.simulations.ab_simulation --table looks`).
"""


def share(error: float, look: int) -> float:
    """Error that look number `look` (from 1) may spend: error · 0.8 · 0.2^(look − 1). K looks spend 1 − 0.2^K of it."""
    return error * FIRST * (1 - FIRST) ** (look - 1)
