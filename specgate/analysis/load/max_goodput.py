"""The greatest load at which latency limits hold, with its interval.

At each level the figure is `limit_use`, the quantile of what requests used up of their limits (`requests.goodput`): the
limits hold where it is at most 1. Between two levels its logarithm is interpolated in log2(level), and so are the ends
of its interval. The level at which the upper end exceeds 1 is the lower end for the greatest load, and the other way
round: an interval by inversion of a test, as the break-even's. More load is taken to be no faster: limits that hold at
a level for certain hold below it, too, where a level has too few requests for an interval of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Literal

from specgate.analysis.grouping import grouped
from specgate.analysis.load.break_even import CONFIDENCE
from specgate.analysis.load.sweeps import sweep_of
from specgate.analysis.requests.goodput import LOST
from specgate.contract import CellResult, Scenario
from specgate.contract.load import LevelUse, MaxGoodput


def greatest_loads(scenarios: Mapping[str, Scenario], cells: Iterable[CellResult]) -> tuple[MaxGoodput, ...]:
    """Return the greatest load within the limits, for every sweep and role of the load scenarios that state any."""
    limited = {name for name, s in scenarios.items() if s.load is not None and s.goodput is not None}
    of = grouped((r for r in cells if r.cell.point.scenario in limited), lambda r: sweep_of(r.cell))
    loads = (greatest_load(sorted(sweep, key=lambda r: r.cell.point.level)) for sweep in of.values())
    return tuple(sorted(loads, key=lambda most: (most.scenario, most.context, most.k)))


def greatest_load(sweep: Sequence[CellResult]) -> MaxGoodput:
    """Return that of one role. `sweep`: its cells by ascending level."""
    levels, cell = tuple(map(use_at, sweep)), sweep[0].cell
    known = [(level, level.use) for level in levels if level.use is not None]
    value = first_rise([(level.level, use) for level, use in known])
    outcome: Literal["crosses", "everywhere", "nowhere", "unknown"] = "crosses"
    if value in (0, math.inf):
        outcome = "unknown" if not known else "nowhere" if value == 0 else "everywhere"
    at, upper, lower = ([level.level for level, _ in known], *bounds([level for level, _ in known]))
    low, high = first_rise(list(zip(at, upper, strict=True))) or None, first_rise(list(zip(at, lower, strict=True)))
    return MaxGoodput(
        scenario=cell.point.scenario,
        context=cell.point.context,
        k=cell.role.k,
        open_loop=cell.point.rate is not None,
        levels=levels,
        outcome=outcome,
        value=value if outcome == "crosses" else None,
        low=None if not at else at[-1] if low == math.inf else low,
        high=None if high == math.inf else high,
        confidence=CONFIDENCE,
    )


def use_at(result: CellResult) -> LevelUse:
    use, goodput = result.values.get("limit_use"), result.values.get("goodput_req_s")
    figures = (use.n, use.value, use.ci_low, use.ci_high) if use is not None else (0, None, None, None)
    return LevelUse(result.cell.point.level, result.cell.key, *figures, goodput.value if goodput else None)


def bounds(levels: Sequence[LevelUse]) -> tuple[list[float], list[float]]:
    """Return the upper and the lower ends for the use at every level, which fall at no greater one."""
    upper = list(accumulate((level.ci_high or LOST for level in reversed(levels)), min))[::-1]
    return upper, list(accumulate((level.ci_low or 1 / LOST for level in levels), max))


def first_rise(uses: Sequence[tuple[float, float]]) -> float:
    """Return the level at which the interpolated use first exceeds 1: 0 where it does at the first level, and infinity
    where it does at none. `uses`: (level, use), by ascending level.
    """
    if uses and uses[0][1] > 1:
        return 0.0
    for (a, before), (b, after) in pairwise(uses):
        if after > 1:
            part = -math.log(before) / (math.log(after) - math.log(before)) if before > 0 else 0.0
            return float(a * (b / a) ** part)
    return math.inf
