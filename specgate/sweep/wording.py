"""What is printed of a sweep."""

from __future__ import annotations

import math

from specgate.sweep.grid import in_words
from specgate.sweep.measuring import Candidate


def standing(candidate: Candidate) -> str:
    """A setting and its speed so far, or why it cannot win."""
    words = in_words(candidate.setting)
    if candidate.why_not is not None:
        return f"{words}: cannot win: {candidate.why_not}"
    if candidate.speeds is None:
        return f"{words}: not measured"
    pairs = "1 pair" if candidate.pairs == 1 else f"{candidate.pairs} pairs"
    return f"{words}: {percent(candidate.speeds.mean)} tokens per second ({pairs})"


def percent(mean: float) -> str:
    """A mean of logarithms as a difference in percent."""
    return f"{math.expm1(mean):+.1%}"


def duration(seconds: float) -> str:
    """Seconds as a command line takes them: 90s, 5m, 2.5h."""
    for unit, size in (("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f}".removesuffix(".0") + unit
    return f"{seconds:.3g}s"
