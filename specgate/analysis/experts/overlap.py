"""Estimate how far neighbouring tokens share their experts, from how many they touch; and the overlap that a cycle
needs.

`ExpertTraffic.distinct` has the formula, `docs/definitions.md` the definition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from specgate.contract.traffic import ExpertTraffic

Rows = Mapping[tuple[int, ...], int]
"""Rows of every active slot → how many passes had them."""
HALVINGS: Final = 60
MOST_INDEPENDENT: Final = 4.0
"""How many independent slots one may at most count as: slots that avoid each other's experts count as more than one."""


def overlap_of(experts: ExpertTraffic, tokens: int, touched: float) -> float | None:
    """The overlap at which `tokens` neighbouring tokens touch `touched` experts of a layer.

    Below 0 where they share less than independent tokens would. None where nothing can be told: of a single token, and
    where every token goes to every expert.
    """
    independent = experts.distinct(tokens)
    if tokens < 2 or experts.active >= experts.count:
        return None
    return (independent - touched) / (independent - experts.active)


def mean_touched(experts: ExpertTraffic, rows: Rows, overlap: float, independence: float = 1.0) -> float:
    """Experts of a layer that a pass touches by `ExpertTraffic.distinct_of_slots`, the mean over passes with `rows`."""
    total = sum(n * experts.distinct_of_slots(of, overlap, independence) for of, n in rows.items())
    return total / sum(rows.values())


def independence_of(experts: ExpertTraffic, rows: Rows, overlap: float, touched: float) -> float:
    """Number of independent slots that a slot counts as, if passes touch `touched` experts of a layer in the mean."""
    if all(len(of) <= 1 for of in rows):
        return 1.0
    return solved(lambda n: touched - mean_touched(experts, rows, overlap, n), 0.0, MOST_INDEPENDENT)


def needed_overlap(experts: ExpertTraffic, rows: Rows, touched: float, independence: float = 1.0) -> float | None:
    """The least overlap at which passes touch no more than `touched` experts of a layer in the mean.

    0 where independent tokens do already; None where even tokens that all choose the same experts touch more.
    """
    if mean_touched(experts, rows, 0.0, independence) <= touched:
        return 0.0
    if mean_touched(experts, rows, 1.0, independence) > touched:
        return None
    return solved(lambda o: mean_touched(experts, rows, o, independence) - touched, 0.0, 1.0)


def solved(falling: Callable[[float], float], low: float, high: float) -> float:
    """Return the zero of `falling` between `low` and `high`, or the end that is nearest to it."""
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > 0 else (low, middle)
    return high


def passes_with(rows: Sequence[tuple[int, ...]]) -> Rows:
    """Rows of every active slot, in descending order → the passes of `rows` that had them; passes without rows are left
    out.
    """
    return Counter(tuple(sorted(of, reverse=True)) for of in rows if of)
