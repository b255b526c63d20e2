"""Numbers on the command line: bounded like those of a scenario file, and finite."""

from __future__ import annotations

import math
import re
from typing import Any, Final

import click

from specgate.contract.types import BATCH, DRAFT_TOKENS, POSITIONS, RATE, REPEATS, SECONDS, SEED, STEPS


class Real(click.FloatRange):
    """A finite number in a range. click's own range lets NaN through, which is never outside of it."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{number} is not a finite number.", param, ctx)
        return number


class Whole(click.IntRange):
    """A whole number in a range."""

    name = "whole number"


class Axis(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4, and 8.1 will do
    """Whole numbers with commas between them, in ascending order whatever the order they come in: `8K,32K` is
    (8192, 32768). The word `word` may stand in their place.
    """

    name = "axis"

    def __init__(self, most: int, word: str | None = None) -> None:
        self.most, self.word = most, word

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, tuple) or (self.word is not None and value == self.word):
            return value
        numbers = set()
        for part in str(value).split(","):
            match = re.fullmatch(r"([0-9]{1,12})([kK]?)", part.strip(), re.ASCII)
            number = int(match[1]) * (1024 if match[2] else 1) if match else 0
            if not 1 <= number <= self.most:
                example = "1,4" if self.most < 32 << 10 else "8K,32K (K = 1024)"
                right = f"whole numbers from 1 to {self.most} with commas between them, such as {example}"
                inside = f" in {str(value)[:80]!r}" if part != value else ""
                self.fail(f"{part.strip()[:40]!r}{inside}: {right}.", param, ctx)
            numbers.add(number)
        return tuple(sorted(numbers))


class Duration(click.ParamType):  # type: ignore[type-arg]  # as Axis
    """Seconds: a number with its unit, as 90s, 5m or 2h, or without one."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        match = re.fullmatch(r"([0-9.]{1,12})([smh]?)", str(value).strip(), re.ASCII)
        try:
            number = float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]] if match else 0.0
        except ValueError:
            number = 0.0
        if not 0 < number <= SECONDS:
            self.fail(f"{str(value)[:40]!r}: a time such as 90s, 5m or 2h, up to {SECONDS:.0f} s.", param, ctx)
        return number


class Rates(click.ParamType):  # type: ignore[type-arg]  # as Axis
    """Requests per second with commas between them, ascending whatever the order they come in."""

    name = "rates"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, tuple):
            return value
        rates = {ABOVE_ZERO_RATE.convert(part.strip(), param, ctx) for part in str(value).split(",")}
        return tuple(sorted(rates))


def joined(ctx: click.Context, param: click.Parameter, values: tuple[Any, ...]) -> Any:
    """Numbers of an option that may be repeated, each time with an `Axis`; None without any.

    Raises click.BadParameter for numbers beside a word.
    """
    words = [value for value in values if not isinstance(value, tuple)]
    if words and any(value != words[0] for value in values):
        raise click.BadParameter(f"{words[0]!r} stands by itself, without numbers beside it.", ctx, param)
    return words[0] if words else tuple(sorted({number for value in values for number in value})) or None


def count(least: int = 1, most: int = STEPS) -> Whole:
    """A whole number from `least` to `most`."""
    return Whole(least, most)


def above_zero(most: float) -> Real:
    """A finite number above 0, and at most `most`."""
    return Real(0, most, min_open=True)


BATCHES: Final = count(most=BATCH)
CONTEXT: Final = count(most=POSITIONS)
DRAFTED: Final = count(most=DRAFT_TOKENS)
CONTEXTS: Final = Axis(POSITIONS, "own")
BATCH_SIZES: Final = Axis(BATCH)
DRAFT_LENGTHS: Final = Axis(DRAFT_TOKENS)
PREFIX: Final = count(0, POSITIONS)
NEW_TOKENS: Final = count(2)
BLOCK_STEPS: Final = count()
RUNS: Final = count(most=REPEATS)
WARMUP_RUNS: Final = count(0, REPEATS)
SEEDS: Final = count(-SEED, SEED)
SHARE: Final = Real(-1, 1)
"""A share. Whoever takes it says which ones make sense."""
BUDGET: Final = Duration()
ABOVE_ZERO_RATE: Final = Real(1 / SECONDS, RATE)
RATES: Final = Rates()
TIME: Final = above_zero(SECONDS)
PERCENT: Final = above_zero(1000)
