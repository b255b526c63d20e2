"""The greatest load at which latency limits hold: the level, its interval, and which levels it takes to find it.

At each level the figure is `limit_use`, the quantile of what requests used up of their limits (`requests.goodput`): the
limits hold where it is at most 1. Between two levels its logarithm is interpolated in log2(level), and so are the ends
of its interval. The level at which the upper end exceeds 1 is the lower end for the greatest load, and the other way
round: an interval by inversion of a test, as the break-even's. More load is taken to be no faster: limits that hold at
a level for certain hold below it, too, where a level has too few requests for an interval of its own.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Literal, TypeVar

from specgate.analysis.load.break_even import CONFIDENCE
from specgate.analysis.load.sweeps import Sweep, sweep_of
from specgate.analysis.requests.goodput import LOST, used
from specgate.analysis.requests.timing import requests_of
from specgate.contract import Block, CellResult, LatencyLimits, Plan, Point, Role, Scenario
from specgate.contract.load import LevelUse, MaxGoodput

T = TypeVar("T")


def greatest_loads(scenarios: Mapping[str, Scenario], cells: Iterable[CellResult]) -> tuple[MaxGoodput, ...]:
    """Return the greatest load within the limits, for every sweep and role of the load scenarios that state any."""
    of: dict[Sweep, list[CellResult]] = defaultdict(list)
    for result in cells:
        scenario = scenarios[result.cell.point.scenario]
        if scenario.load is not None and scenario.goodput is not None:
            of[sweep_of(result.cell)].append(result)
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
        low=known[-1][0].level if low == math.inf else low,
        high=None if high == math.inf or not known else high,
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


# ── the search ───────────────────────────────────────────────────────────────────────────────────────────────────────


def search_order(levels: Sequence[T]) -> list[T]:
    """Return `levels`, which ascend, as a search takes them: every second one first, and then those between."""
    return [*levels[::2], *levels[1::2]]


def needless_points(plan: Plan, blocks: Sequence[Block]) -> set[Point]:
    """Return the points without blocks that the searches of `plan` do not need, given `blocks`."""
    of: dict[tuple[str, int], list[Point]] = defaultdict(list)
    for point in plan.points:
        load = plan.scenarios[point.scenario].load
        if load is not None and load.search:
            of[point.scenario, point.context].append(point)
    needless = set[Point]()
    for points in of.values():
        points.sort(key=lambda point: point.level)
        limits = plan.scenarios[points[0].scenario].goodput
        assert limits is not None
        measured = ((p.level, [b for b in blocks if b.point == p and not b.warmup]) for p in points)
        uses = {level: list(uses_of(of_level, limits)) for level, of_level in measured if of_level}
        skipped = needless_levels([p.level for p in points], uses)
        needless |= {point for point in points if point.level in skipped}
    return needless


def uses_of(blocks: Sequence[Block], limits: LatencyLimits) -> Iterator[float]:
    """Yield the use of the limits by each role, the baseline first, of the blocks of one point."""
    import numpy as np

    by_role: dict[Role, list[float]] = defaultdict(list)
    for block in blocks:
        assert block.served is not None
        by_role[block.role] += [min(used(r, limits), LOST) for r in requests_of(block, whole_requests=True)]
        by_role[block.role] += [LOST] * len(block.served.refused)
    for role in sorted(by_role, key=lambda role: role.k):
        yield float(np.quantile(by_role[role], limits.share))


def needless_levels(levels: Sequence[float], uses: Mapping[float, Sequence[float]]) -> set[float]:
    """Return the levels that a search leaves out. `uses`: measured level → the use of the limits by each role.

    Of every second level none is needed above one at which every role exceeded the limits. A level between two is
    needed where a role kept to the limits at the one below it and not at the one above.
    """
    beyond = min((level for level, of_roles in uses.items() if min(of_roles) > 1), default=math.inf)
    coarse = {level for level in levels[::2] if level > beyond and level not in uses}
    needless = set(coarse)
    for below, level, above in zip(levels[::2], levels[1::2], [*levels[2::2], math.inf], strict=False):
        if level in uses:
            continue
        if below in coarse or level > beyond:
            needless.add(level)
        elif below in uses and above in uses:
            pairs = zip(uses[below], uses[above], strict=False)
            if not any(before <= 1 < after for before, after in pairs):
                needless.add(level)
    return needless
