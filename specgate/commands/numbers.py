"""Numbers on the command line: bounded like those of a scenario file, and finite."""

from __future__ import annotations

import math
from typing import Any, Final

import click

from specgate.planning.bounds import BATCH, POSITIONS, REPEATS, SECONDS, SEED, STEPS

LONGEST_DRAFT: Final = 64
"""Draft tokens per cycle. Scenarios allow fewer; the commands that tune and check parts of an engine allow these."""


class Real(click.FloatRange):
    """A finite number in a range. click's own range lets NaN through, which is never outside of it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{number} is not a finite number.", param, ctx)
        return number


def count(least: int = 1, most: int = STEPS) -> click.IntRange:
    """A whole number from `least` to `most`."""
    return click.IntRange(least, most)


def above_zero(most: float) -> Real:
    """A finite number above 0, and at most `most`."""
    return Real(0, most, min_open=True)


BATCHES: Final = count(most=BATCH)
CONTEXT: Final = count(most=POSITIONS)
DRAFTED: Final = count(most=LONGEST_DRAFT)
RUNS: Final = count(most=REPEATS)
WARMUP_RUNS: Final = count(0, REPEATS)
SEEDS: Final = count(-SEED, SEED)
SHARE: Final = Real(-1, 1)
"""A share. Whoever takes it says which ones make sense."""
TIME: Final = above_zero(SECONDS)
PERCENT: Final = above_zero(1000)
