"""Figures as text, and the floors that they are held to."""

from __future__ import annotations

import math

from specgate.analysis.intervals.other_prompts import SPEEDUP_LIKE_THESE, from_a_file, like_these_in_words
from specgate.analysis.intervals.rounding import told_from
from specgate.analysis.machine.memory import size_in_words
from specgate.contract import SPEEDUP, Cell, CellResult, Comparison, Run, Value
from specgate.contract.metrics import TIMES_OVER, metric

NONE = "–"
COUNTED = ("steps", "blocks", "slots", "requests", "tok", "answers")
"""Units of counts. Whole numbers of them are written without decimals; means of them have decimals."""


def number(value: float, digits: int = 3) -> str:
    """The value with `digits` significant digits, without an exponent and with separated thousands: 0.0123, 1,230."""
    if not math.isfinite(value):
        return NONE
    magnitude = math.floor(math.log10(abs(value))) if value else 0
    return f"{value:,.{max(0, digits - 1 - magnitude)}f}"


def percent(share: float | None) -> str:
    return NONE if share is None else f"{100 * share:.1f} %"


def counted(n: int, one: str, many: str | None = None) -> str:
    """Return a count with its noun: `1 run`, `1,200 runs`."""
    return f"{n:,} {one if n == 1 else many or one + 's'}"


def ends(low: float | None, high: float | None) -> str | None:
    """Return the interval of a ratio between runs; None if there is none."""
    return None if low is None or high is None else f"{low:.3f}–{high:.3f}"


def ratio(value: float) -> str:
    return f"{told_from(1.0, value, 2)}×"


def figure(value: Value | None) -> str:
    """The value without its unit, or a dash if there is none. `×` and `%` are kept, as parts of the number."""
    if value is None or value.value is None:
        return NONE
    kind = metric(value.metric)
    if kind.name in TIMES_OVER:
        return ratio(value.value)
    if kind.unit == "ratio":
        return percent(value.value)
    if kind.unit == "B":
        return size_in_words(value.value)
    if kind.unit in COUNTED and value.value.is_integer():
        return f"{value.value:,.0f}"
    return f"{value.value:.2f}" if kind.unit == "tokens" else number(value.value)


def span(value: Value | None) -> str | None:
    """The interval, formatted like its value; None if there is none."""
    if value is None or value.value is None or value.ci_low is None or value.ci_high is None:
        return None
    times, share = value.metric in TIMES_OVER, metric(value.metric).unit == "ratio"
    low, high = (
        told_from(1.0, bound, 2) if times else percent(bound) if share else f"{bound:.2f}"
        for bound in (value.ci_low, value.ci_high)
    )
    return f"{low} … {high}"


def reason(value: Value | None) -> str | None:
    """Return the reason why a figure may not be quoted; None if it may, or if there is no figure."""
    return value.reason_code.replace("_", " ") if value is not None and value.reason_code else None


def of(result: CellResult, *names: str) -> str:
    """The first of these figures that the cell has."""
    return figure(first(result, *names))


def first(result: CellResult, *names: str) -> Value | None:
    """The first of these values that the cell has."""
    return next((result.values[name] for name in names if name in result.values), None)


def like_these(run: Run, comparison: Comparison | None) -> Value | None:
    """The speed-up on prompts like these, of a user's own prompts whose speed-up may be quoted; else None."""
    if comparison is None or comparison.speedup.value is None:
        return None
    if not from_a_file(run.prompts.get(comparison.cell.point.key, {})):
        return None
    return next((v for v in comparison.beside if v.metric == SPEEDUP_LIKE_THESE), None)


def others(run: Run, comparison: Comparison | None) -> str | None:
    """The same in words."""
    value = like_these(run, comparison)
    return like_these_in_words(value, unit="×", digits=2) if value else None


SPEED = ("output_tok_s", "joint_decode_tok_s", "decode_tok_s")
"""The speed that a run quotes first: of whole requests, else of decoding alone."""
PER_TOKEN = ("joint_tpot_ms", "mean_tpot_ms")
"""Milliseconds per output token: while a batch decodes jointly, else over all of its decoding."""


def floor_of(run: Run, cell: Cell) -> float | None:
    """Return the highest floor of the required rules for the speed-up of the cell; of those that advise if none is
    required; None if there is no such rule.
    """
    key = cell.key
    mine = [v for v in run.verdicts if v.cell == key and v.floor is not None and v.floor.figure == SPEEDUP]
    decisive = [v for v in mine if v.required] or mine
    return max((v.floor.least for v in decisive if v.floor is not None), default=None)


def in_minutes(seconds: float) -> str:
    """Return a time as `4 min 3 s`, `41 s`, or `0.4 s` below one second."""
    minutes, left = divmod(round(seconds), 60)
    return f"{minutes} min {left} s" if minutes else f"{left} s" if seconds >= 1 or not seconds else f"{seconds:.1f} s"
