"""Follow figures over many stored runs, and find where they changed.

A series is searched by a permutation test. The statistic is the largest standardised difference between the means
before and after a place (a CUSUM statistic), over all places with MIN_SIDE readings on either side:

    max over k of |S_k − k/n · S_n| / √(k · (n − k) / n),   S_k = the sum of the first k logarithms

Its distribution without a change is that over random orders of the same readings, so nothing is assumed of their noise
but that its order carries no information. A slow drift does: it is found as a change too.

All series of a history share BUDGET, the chance of at least one false alarm: a series spends BUDGET / number of series
searched (Bonferroni). Half of that is spent on the series as a whole, a quarter on the two parts beside the first
change, and so on, so that changes are found one after the other within the same budget. Which series are searched
depends on how many readings they have, never on what was measured.

Only figures that rest on the same facts are put into one series: the same machine, weights, prompts and settings. In
code and reports these facts are called the group of a figure. Where weights are known by their hashes, the name of the
pair is no part of it: the same files may be found under two names.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final

from specgate.archive.stored_runs import load_run
from specgate.contract import Cell, CellResult, Run, Scenario, Value
from specgate.contract.comparisons import ChangePoint, Reading, Series, Trends
from specgate.errors import SpecgateError, UsageError
from specgate.promotion.claim import digests

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vector = NDArray[np.float64]


BUDGET: Final = 0.005
"""The chance that a history without any change has a change point marked somewhere."""
MIN_SIDE: Final = 3
"""Fewest readings on either side of a change: one odd run is no change of level."""
SEED: Final = 20261122
"""Of the random orders, so that the same runs give the same page."""
CHUNK: Final = 4096
"""Random orders that are evaluated together."""


def with_changes(series: Sequence[Series]) -> tuple[Series, ...]:
    """The series with their change points, where they have enough readings to be searched."""
    least, searched = plan([len(s.readings) for s in series])
    return tuple(
        replace(s, changes=tuple(changes_of(s, BUDGET / searched))) if searched and len(s.readings) >= least else s
        for s in series
    )


def plan(lengths: Sequence[int]) -> tuple[int, int]:
    """(fewest readings of a series that is searched, how many series are).

    A series takes part if a clean step in its middle would be found, with the share of the budget that is left when all
    series of its length or more take part.
    """
    for least in sorted(set(lengths)):
        searched = sum(n >= least for n in lengths)
        if long_enough(least, BUDGET / searched):
            return least, searched
    return 0, 0


def long_enough(readings: int, alpha: float) -> bool:
    """True if a clean step in the middle of a series is rare enough to be told from random orders: at most half the p
    that its first test may have.
    """
    return readings >= 2 * MIN_SIDE and least_p(readings) <= alpha / 4


def fewest_readings() -> int:
    """Number of readings that the only series of a history must have to be searched."""
    return next(n for n in count(2 * MIN_SIDE) if long_enough(n, BUDGET))


def least_p(readings: int) -> float:
    """The least p that a step in the middle of so many readings can have: two orders of all are as extreme."""
    return 2 / math.comb(readings, readings // 2)


def changes_of(series: Series, alpha: float) -> Iterator[ChangePoint]:
    """The change points of one series, in order, with a chance of a false one of at most `alpha`."""
    import numpy as np

    values = [r.value for r in series.readings]
    if min(values) <= 0:
        return
    logs = np.log(np.asarray(values, float))
    changes = sorted(splits(logs, 0, alpha / 2))
    edges = [0, *(at for at, _ in changes), len(values)]
    for (at, p), start, end in zip(changes, edges[:-2], edges[2:], strict=True):
        before, after = (math.exp(float(part.mean())) for part in (logs[start:at], logs[at:end]))
        yield ChangePoint(at, before, after, p)


def splits(logs: Vector, start: int, alpha: float) -> Iterator[tuple[int, float]]:
    """(index, p) of the largest change in `logs` and, where it is proven, of those in the parts beside it.

    `start`: the index of its first reading in the whole series.
    """
    if len(logs) < 2 * MIN_SIDE or least_p(len(logs)) > alpha:
        return
    at, p = largest_step(logs, alpha)
    if p <= alpha:
        yield start + at, p
        yield from splits(logs[:at], start, alpha / 4)
        yield from splits(logs[at:], start + at, alpha / 4)


def largest_step(logs: Vector, alpha: float) -> tuple[int, float]:
    """(where the largest step is, its p by random orders of `logs`). `alpha`: the p that must be told apart.

    p = (1 + orders that have as large a step) / (1 + orders), which keeps its level for any number of orders. No more
    orders are tried once it is above `alpha` whatever they say.
    """
    import numpy as np

    steps = standardised_steps(logs[None, :])[0]
    at, observed = MIN_SIDE + int(np.argmax(steps)), float(np.max(steps))
    orders = max(1999, math.ceil(20 / alpha))
    random = np.random.default_rng(SEED)
    # Rounding must not make an order that is as extreme as the observed one look less so.
    threshold = observed * (1 - 1e-9)
    as_large = tried = 0
    while tried < orders and 1 + as_large <= alpha * (1 + orders):
        shuffled = random.permuted(np.tile(logs, (min(CHUNK, orders - tried), 1)), axis=1)
        as_large += int((standardised_steps(shuffled).max(axis=1) >= threshold).sum())
        tried += len(shuffled)
    return at, (1 + as_large) / (1 + tried)


def standardised_steps(logs: Vector) -> Vector:
    """[order, place] of the standardised step at each place that has MIN_SIDE readings on either side.

    `logs`: [order, reading]. A place k lies before reading k; the first one is MIN_SIDE.
    """
    import numpy as np

    n = logs.shape[1]
    k = np.arange(MIN_SIDE, n - MIN_SIDE + 1)
    centred = logs - logs.mean(axis=1, keepdims=True)
    sums = np.cumsum(centred, axis=1)[:, k - 1]
    steps: Vector = np.abs(sums) / np.sqrt(k * (n - k) / n)
    return steps


FOLLOWED = (
    *("speedup_vs_ar_ratio", "decode_speedup_ratio", "acceptance_length", "output_tok_s", "decode_tok_s"),
    *("p50_ttft_ms", "joint_decode_speedup_ratio", "joint_decode_tok_s"),
)
"""Figures that are followed."""


def trends_of(folder: Path) -> Trends:
    """The trends over all runs at or below `folder`.

    A run that cannot be read is left out, and `unread` says why. Raises UsageError if there is no run folder at all.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder", hint="give the folder that holds run folders")
    runs: list[Run] = []
    unread: list[str] = []
    for config in sorted(folder.rglob("config.resolved.yaml")):
        try:
            runs.append(load_run(config.parent).run)
        except SpecgateError as error:
            unread.append(error.message)
    if not runs and not unread:
        raise UsageError(f"{folder} holds no run folder", hint="give the folder that holds run folders")
    once = {run.id: run for run in runs}  # a run that was copied counts once
    ordered = sorted(once.values(), key=lambda run: (run.started, run.id))
    groups = {name: facts for run in ordered for c in run.cells for name, facts in [group_of(run, c.cell)]}
    searched = with_changes(list(series(ordered)))
    return Trends(tuple(ordered), searched, groups, tuple(unread), BUDGET, fewest_readings())


def series(runs: Sequence[Run]) -> Iterator[Series]:
    """One series per group, cell and followed metric. `runs`: oldest first."""
    readings_by_key: dict[tuple[str, Cell, str], list[Reading]] = {}
    for place, run in enumerate(runs):
        for result in run.cells:
            name, _ = group_of(run, result.cell)
            for value in followed(run, result):
                if value.value is not None:
                    reading = Reading(place, value.value, value.ci_low, value.ci_high)
                    readings_by_key.setdefault((name, result.cell, value.metric), []).append(reading)
    for (name, cell, metric), readings in sorted(readings_by_key.items(), key=order):
        yield Series(cell, metric, name, tuple(readings))


def followed(run: Run, result: CellResult) -> Iterator[Value]:
    """The figures of a cell that are followed. None of them if the cell is incomplete."""
    if result.status == "ok":
        comparison = run.comparison(result.cell.key)
        ratios = (comparison.speedup, *comparison.beside) if comparison else ()
        values = {**result.values, **{ratio.metric: ratio for ratio in ratios}}
        yield from (values[name] for name in FOLLOWED if name in values)


def order(item: tuple[tuple[str, Cell, str], object]) -> tuple[object, ...]:
    name, cell, metric = item[0]
    point = cell.point
    return point.scenario, point.backend, point.context, point.batch, name, FOLLOWED.index(metric), cell.role.k


def group_of(run: Run, cell: Cell) -> tuple[str, Mapping[str, str]]:
    """The group of a cell's figures: (name, facts). The name is the first 8 digits of the SHA-256 of the facts."""
    point = cell.point
    engine, scenario = run.engines.get(point.key), run.scenarios.get(point.scenario)
    facts: dict[str, object] = {
        "back end": point.backend,
        "device": engine.device if engine else None,
        "CPU": nested(run.environment, "host", "cpu"),
        "dtype": engine.dtype if engine else None,
        "pair": None if engine and engine.target else run.pair.name,
        "target": engine.target if engine else None,
        "draft": engine.draft_sha256 if engine else None,
        "tape": engine.tape_sha256 if engine else None,
        "acceptance": run.acceptance,
        "prompts": nested(run.prompts, point.key, "sha256"),
        "scenario": scenario_digest(scenario, named=not (engine and engine.target)) if scenario else None,
    }
    stated = {name: str(value) for name, value in facts.items() if value is not None}
    return hashlib.sha256(json.dumps(stated, sort_keys=True).encode()).hexdigest()[:8], stated


def scenario_digest(scenario: Scenario, *, named: bool) -> str:
    """SHA-256 of what a scenario measures. `named`: whether the name of its pair belongs to it."""
    return digests([scenario if named else replace(scenario, pair="")])[scenario.name]


def nested(facts: Mapping[str, object], *path: str) -> object:
    """The value under a path of keys, or None if one of the keys is missing."""
    value: object = facts
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
