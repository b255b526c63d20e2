"""Successive halving: all settings with few samples, the better half with twice as many, and so on.

Every halving costs about as much as the one before, so that most samples go to settings that may be the best.
Karnin, Z., Koren, T. and Somekh, O. (2013): Almost optimal exploration in multi-armed bandits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

LAST_PAIRS: Final = 4
"""Process pairs that each setting of the last halving has had, at least: three have an interval."""
FINAL_PAIRS: Final = 8
"""Process pairs of the final comparison's first look."""


@dataclass(frozen=True, slots=True)
class Halving:
    """`settings` are measured until each has had `pairs` process pairs beside the default; the better half goes on."""

    settings: int
    pairs: int

    @property
    def kept(self) -> int:
        """How many go on."""
        return -(-self.settings // 2)


def halvings(settings: int) -> tuple[Halving, ...]:
    """The halvings of so many settings, until one is left; none of a single one."""
    counts = []
    while settings > 1:
        counts.append(settings)
        settings = -(-settings // 2)
    first = max(1, 2 * LAST_PAIRS >> len(counts))
    return tuple(Halving(count, first << number) for number, count in enumerate(counts))


def cost(halvings: tuple[Halving, ...], number: int) -> int:
    """Process pairs that halving `number` adds to those before."""
    before = halvings[number - 1].pairs if number else 0
    return halvings[number].settings * (halvings[number].pairs - before)
