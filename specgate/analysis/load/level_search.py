"""Which levels of load a search measures: those that it takes to say where limits break, or where speculation costs.

`goodput`: every second level by ascending load, until every role exceeds the limits, and then those at which a role may
begin to. `break-even`: the levels by ascending load, until every draft length costs. What a search needs follows from
the blocks that were measured, so that it is the same during a run, after a --resume, and offline.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np

from specgate.analysis.grouping import grouped
from specgate.analysis.paired_blocks import speed
from specgate.analysis.requests.goodput import LOST, used
from specgate.analysis.requests.timing import requests_of
from specgate.contract import BASELINE, Block, LatencyLimits, Plan, Point, Role

T = TypeVar("T")


def search_order(levels: Sequence[T]) -> list[T]:
    """Return `levels`, which ascend, as a search takes them: every second one first, and then those between."""
    return [*levels[::2], *levels[1::2]]


def needless_points(plan: Plan, blocks: Sequence[Block]) -> set[Point]:
    """Return the points without measured blocks that the searches of `plan` do not need, given `blocks`."""
    searched = {name for name, s in plan.scenarios.items() if s.load is not None and s.load.search}
    of = grouped((p for p in plan.points if p.scenario in searched), lambda p: (p.scenario, p.context))
    needless = set[Point]()
    for points in of.values():
        points.sort(key=lambda point: point.level)
        scenario = plan.scenarios[points[0].scenario]
        measured = {p.level: [b for b in blocks if b.point == p and not b.warmup] for p in points}
        levels, of_level = list(measured), {level: of for level, of in measured.items() if of}
        if scenario.goodput is not None and scenario.load is not None and scenario.load.search == "goodput":
            limits = scenario.goodput
            skipped = needless_levels(levels, {level: list(uses_of(of, limits)) for level, of in of_level.items()})
        else:
            beyond = min((level for level, of in of_level.items() if costs(of)), default=math.inf)
            skipped = {level for level in levels if level > beyond and level not in of_level}
        needless |= {point for point in points if point.level in skipped}
    return needless


def costs(blocks: Sequence[Block]) -> bool:
    """Return whether every draft length is slower than the baseline, by four standard errors of its mean log-ratio."""
    log_speeds: dict[Role, dict[tuple[int, int], float]] = defaultdict(dict)
    for block in blocks:
        log_speeds[block.role][block.prompt_set, block.round] = math.log(speed(block, whole_requests=True))
    base = log_speeds.pop(BASELINE, {})
    gains = [[x - base[pair] for pair, x in of.items() if pair in base] for of in log_speeds.values()]
    return bool(gains) and all(len(of) > 2 and statistics.fmean(of) < -4 * error_of(of) for of in gains)


def error_of(values: Sequence[float]) -> float:
    """Return the standard error of the mean of independent values."""
    return statistics.stdev(values) / math.sqrt(len(values))


def uses_of(blocks: Sequence[Block], limits: LatencyLimits) -> Iterator[float]:
    """Yield the use of the limits by each role, the baseline first, of the blocks of one point."""
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
