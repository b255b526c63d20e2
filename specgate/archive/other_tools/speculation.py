"""The acceptance length of another tool's result, from its counts; contradictions between counts and means."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from specgate.archive.other_tools.declarations import Counts, at, has
from specgate.archive.other_tools.numbers import Numbers
from specgate.errors import InvalidResult
from specgate.files.json_text import shown

TOLERANCE: Final = 5e-3
"""Absolute tolerance for means, which the file stores rounded."""
LONGEST_DRAFT: Final = 1000
"""Draft tokens per cycle."""


@dataclass(frozen=True, slots=True)
class Drafting:
    """Counts of a result: verified steps, draft tokens, accepted draft tokens."""

    steps: float
    drafted: float
    accepted: float

    @property
    def length(self) -> float | None:
        """Return the acceptance length, 1 + accepted / steps; None if nothing was drafted."""
        return 1 + self.accepted / self.steps if self.steps else None


def drafting_of(counts: Counts, numbers: Numbers, k: int | None) -> Drafting | None:
    """Return the counts of a result; None if it has none. `k`: the draft length that it states.

    Raises UsageError for counts that are no numbers. Raises InvalidResult if they contradict each other, or the means
    that are stated. The stated mean acceptance length may count the bonus token or leave it out.
    """
    if not has(numbers.data, counts.there):
        return None
    drafting = Drafting(*(numbers.of(source) for source in (counts.steps, counts.drafted, counts.accepted)))
    most = LONGEST_DRAFT if k is None else k
    check_order(counts, numbers, drafting, most)
    if drafting.length is None:
        return drafting
    stated = numbers.optional(counts.length)
    if stated is not None and not any(close(stated, right) for right in (drafting.length, drafting.length - 1)):
        right = f"1 + accepted / drafts = {drafting.length:.4f}"
        raise InvalidResult(f"{numbers.where}: {counts.length} = {stated:g}, but {right}")
    rate = drafting.accepted / drafting.drafted if drafting.drafted else 0.0
    stated = numbers.optional(counts.rate)
    if stated is not None and not close(stated / counts.full_rate, rate):
        raise InvalidResult(f"{numbers.where}: {counts.rate} = {stated:g}, but accepted / drafted = {rate:.4f}")
    check_positions(counts.positions, numbers, drafting)
    return drafting


def check_order(counts: Counts, numbers: Numbers, drafting: Drafting, k: int) -> None:
    """Check that accepted ≤ drafted ≤ steps · k. Raises InvalidResult."""
    most = drafting.steps * k * (1 + 1e-9)
    if not drafting.accepted <= drafting.drafted <= most:
        sources = {"accepted": counts.accepted, "drafted": counts.drafted, "steps": counts.steps}
        names = " ≤ ".join(source if isinstance(source, str) else name for name, source in sources.items())
        values = f"{drafting.accepted:g}, {drafting.drafted:g}, {drafting.steps:g} · {k}"
        raise InvalidResult(f"{numbers.where}: {names} · {k} does not hold: {values}")


def check_positions(name: str, numbers: Numbers, drafting: Drafting) -> None:
    """Check that rates by position fall, and add up to the drafts that a step accepts. Raises InvalidResult."""
    rates = at(numbers.data, name) if name else None
    if not isinstance(rates, list) or not rates:
        return
    values = [numbers.checked(name, rate) for rate in rates]
    per_step = drafting.accepted / drafting.steps
    if not close(sum(values), per_step) or values != sorted(values, reverse=True):
        raise InvalidResult(
            f"{numbers.where}: {name} = {shown(rates)} add up to {sum(values):.4f} and may not grow, but accepted / "
            f"drafts = {per_step:.4f}"
        )


def close(a: float, b: float) -> bool:
    return math.isclose(a, b, abs_tol=TOLERANCE)
