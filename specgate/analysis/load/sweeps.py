"""Levels of load side by side: text that is compared, delays of sending, and the sweep.

Where an engine is not bit-exact, many texts leave the baseline's at near ties, and each of these has to be asked about,
one request at a time. So a level compares a sample: the first requests of every prompt set, in its first round. They
are sent while all clients are busy.

A request counts from when it was due, so a late client hides no queue. But its lateness is then part of every latency,
and what the server was offered is not the load that was asked for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from specgate.analysis.grouping import grouped
from specgate.analysis.intervals.autocorrelation import fit
from specgate.analysis.intervals.between_runs import ASSUMED
from specgate.analysis.intervals.decision import FALSE_PASS, false_fail, spent
from specgate.analysis.load.break_even import CONFIDENCE, Found, Level, break_even_of, side_of
from specgate.analysis.stats import planned_interim_looks
from specgate.contract import BetweenRuns, Block, Cell, CellResult, Comparison, Scenario, Served, Value
from specgate.contract.load import BreakEven, LevelRatio
from specgate.contract.types import fields_of

COMPARED: Final = 8
"""Requests of every prompt set whose texts are compared."""


def compared(blocks: Sequence[Block], scenario: Scenario) -> list[Block]:
    """`blocks` of one point as their tokens are compared: as they are, or of a load scenario the sample of their texts.
    Blocks in which a server refused requests are left out, since their slots are other prompts.
    """
    if scenario.load is None:
        return list(blocks)
    first = [b for b in blocks if b.answered_all and b.round == 0]
    # Blocks that end by the clock have more requests or fewer.
    least: dict[int, int] = defaultdict(lambda: COMPARED)
    for b in first:
        least[b.prompt_set] = min(least[b.prompt_set], len(b.tokens))
    return [
        replace(b, tokens=b.tokens[:n], truncated=b.truncated[:n], finish=b.finish[:n])
        for b in first
        for n in [least[b.prompt_set]]
    ]


MOST_LAG: Final = 0.05
"""The 99th percentile of the lag may be this share of the mean end-to-end latency of the same requests: beyond it, the
client has a part in the latencies that no longer is small beside the ratios that a sweep tells apart.
"""

FASTER_CLIENT: Final = "idle CPUs for the client, or a rate that it can keep"


def lag_values(served: Iterable[Served]) -> Iterator[Value]:
    """Percentiles of the time from when a request was due to its sending; nothing where none was due at a time."""
    lags = [(r.sent_ns - r.due_ns) / 1e6 for block in served for r in block.requests if r.due_ns is not None]
    if not lags:
        return
    for percent in (50, 99):
        yield Value(f"p{percent}_send_lag_ms", float(np.percentile(lags, percent)), f"p{percent}", len(lags))
    yield Value("send_lag_ms", max(lags), "max", len(lags))


def fell_behind(result: CellResult) -> str | None:
    """Return, with the figures, the reason that a cell's latencies are not the server's alone; None if they are."""
    if result.cell.point.rate is None:  # only in an open loop are requests due at a time
        return None
    lag, whole = (
        latency.value if (latency := result.values.get(name)) else None for name in ("p99_send_lag_ms", "mean_e2e_ms")
    )
    if lag is None or whole is None or lag <= MOST_LAG * whole:
        return None
    return (
        f"{result.cell.key}: the client fell behind: one request of a hundred was sent more than {lag:.3f} ms after it "
        f"was due, where requests take {whole:.3f} ms; at most {MOST_LAG:.0%} of that may be"
    )


def late_clients(results: Sequence[CellResult]) -> tuple[str, ...]:
    """A sentence for every cell whose client fell behind."""
    return tuple(why for result in results if (why := fell_behind(result)))


def short_blocks(scenarios: Mapping[str, Scenario], blocks: Iterable[Block]) -> tuple[str, ...]:
    """Return a sentence for every cell whose blocks ended by the clock before any client sent a second request."""
    most: dict[Cell, int] = defaultdict(int)
    for block in blocks:
        load = scenarios[block.point.scenario].load
        if load is not None and load.duration_s is not None and block.point.rate is None and block.served is not None:
            most[block.cell] = max(most[block.cell], len(block.served.requests) + len(block.served.refused))
    return tuple(
        f"{cell.key}: the duration is shorter than one request: no client sent a second one, so that blocks are all "
        "beginning and end; give a longer --duration"
        for cell, requests in most.items()
        if requests <= cell.point.batch
    )


Sweep = tuple[str, str, int, int]
"""(scenario, back end, context, draft length)."""


def sweep_of(cell: Cell) -> Sweep:
    """The sweep that a cell belongs to."""
    return cell.point.scenario, cell.point.backend, cell.point.context, cell.role.k


def sweeps(scenarios: Mapping[str, Scenario], comparisons: Iterable[Comparison]) -> Iterator[Sequence[Comparison]]:
    """The comparisons of every sweep of a load scenario, by ascending level."""
    loaded = (c for c in comparisons if scenarios[c.cell.point.scenario].load is not None)
    for sweep in grouped(loaded, lambda c: sweep_of(c.cell)).values():
        yield sorted(sweep, key=lambda c: c.cell.point.level)


def break_evens(
    scenarios: Mapping[str, Scenario], comparisons: Iterable[Comparison], between: Mapping[str, BetweenRuns]
) -> tuple[BreakEven, ...]:
    """Up to which level speculation pays, for every sweep. `between`: `Run.between_runs`."""
    return tuple(
        whole(sweep, scenarios[sweep[0].cell.point.scenario], between) for sweep in sweeps(scenarios, comparisons)
    )


def whole(sweep: Sequence[Comparison], scenario: Scenario, between: Mapping[str, BetweenRuns]) -> BreakEven:
    """The break-even of one sweep."""
    break_even = break_even_of(levels_of(sweep, scenario, between))
    cell = sweep[0].cell
    return BreakEven(
        scenario=cell.point.scenario,
        context=cell.point.context,
        k=cell.role.k,
        open_loop=cell.point.rate is not None,
        levels=tuple(ratio_at(comparison) for comparison in sweep),
        **fields_of(Found, break_even),
        confidence=CONFIDENCE,
    )


def levels_of(sweep: Sequence[Comparison], scenario: Scenario, between: Mapping[str, BetweenRuns]) -> list[Level]:
    """The levels at which a speed may be quoted and enough pairs were measured."""
    levels = (level_of(comparison, scenario, between) for comparison in sweep)
    return [level for level in levels if level is not None]


def level_of(comparison: Comparison, scenario: Scenario, between: Mapping[str, BetweenRuns]) -> Level | None:
    """One level with the errors of its decision; None where no speed may be quoted or too few pairs were measured.

    A level is decided at an interim look or at the end of its plan. Its looks share the errors of its decision, as in
    every other (`intervals.levels`), and the levels of a scenario share the error of a FAIL.
    """
    c = comparison
    known = fit(c.log_ratios, c.orders, c.prompt_sets, c.turns) if c.speedup.value is not None else None
    if known is None:
        return None
    look = 1 + sum(look <= max(c.turns) for look in planned_interim_looks(scenario))
    errors = spent(FALSE_PASS, look), spent(false_fail(True, decisions_in(scenario)), look)
    allowed = between.get(c.cell.key, ASSUMED)
    return Level(c.cell.point.level, known.mean, known.error, known.freedom, allowed, *errors)


def decisions_in(scenario: Scenario) -> int:
    """The spec cells of a load scenario."""
    assert scenario.load is not None
    levels = len(scenario.load.rates) or len(scenario.grid.batch)
    return len(scenario.grid.context) * levels * len(scenario.grid.spec)


def told_apart(scenario: Scenario, comparisons: Iterable[Comparison], between: Mapping[str, BetweenRuns]) -> bool:
    """True if every draft length of one level is told from the baseline, so that more rounds would tell no more."""
    levels = [level_of(comparison, scenario, between) for comparison in comparisons]
    return bool(levels) and all(level is not None and side_of(level) for level in levels)


def ratio_at(comparison: Comparison) -> LevelRatio:
    value = comparison.speedup
    level = comparison.cell.point.level
    return LevelRatio(level, comparison.cell.key, value.n, value.value, value.ci_low, value.ci_high)
