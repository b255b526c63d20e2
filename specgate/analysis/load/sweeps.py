"""Which cells make up a sweep: those of one scenario, context and draft length, at every level of load."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from specgate.analysis.intervals.autocorrelation import fit
from specgate.analysis.intervals.between_runs import ASSUMED
from specgate.analysis.load.break_even import CONFIDENCE, Level, break_even_of
from specgate.core import BetweenRuns, Cell, Comparison, Scenario
from specgate.core.load import BreakEven, LevelRatio

Sweep = tuple[str, str, int, int]
"""(scenario, back end, context, draft length)."""


def sweep_of(cell: Cell) -> Sweep:
    """The sweep that a cell belongs to."""
    return cell.point.scenario, cell.point.backend, cell.point.context, cell.role.k


def sweeps(scenarios: Mapping[str, Scenario], comparisons: Iterable[Comparison]) -> Iterator[Sequence[Comparison]]:
    """The comparisons of every sweep of a load scenario, by ascending level."""
    found: dict[Sweep, list[Comparison]] = defaultdict(list)
    for comparison in comparisons:
        if scenarios[comparison.cell.point.scenario].load is not None:
            found[sweep_of(comparison.cell)].append(comparison)
    for sweep in found.values():
        yield sorted(sweep, key=lambda c: c.cell.point.level)


def break_evens(
    scenarios: Mapping[str, Scenario], comparisons: Iterable[Comparison], between: Mapping[str, BetweenRuns]
) -> tuple[BreakEven, ...]:
    """Up to which level speculation pays, for every sweep. `between`: `Run.between_runs`."""
    return tuple(whole(sweep, between) for sweep in sweeps(scenarios, comparisons))


def whole(sweep: Sequence[Comparison], between: Mapping[str, BetweenRuns]) -> BreakEven:
    """The break-even of one sweep."""
    found = break_even_of(levels_of(sweep, between))
    cell = sweep[0].cell
    return BreakEven(
        scenario=cell.point.scenario,
        context=cell.point.context,
        k=cell.role.k,
        levels=tuple(ratio_at(comparison) for comparison in sweep),
        outcome=found.outcome,
        value=found.value,
        low=found.low,
        high=found.high,
        confidence=CONFIDENCE,
    )


def levels_of(sweep: Sequence[Comparison], between: Mapping[str, BetweenRuns]) -> list[Level]:
    """The levels at which a speed may be quoted and enough pairs were measured."""
    found = []
    for c in sweep:
        known = fit(c.log_ratios, c.orders, c.prompt_sets, c.turns) if c.speedup.value is not None else None
        if known is not None:
            allowed = between.get(c.cell.key, ASSUMED)
            found.append(Level(c.cell.point.level, known.mean, known.error, known.freedom, allowed))
    return found


def ratio_at(comparison: Comparison) -> LevelRatio:
    value = comparison.speedup
    level = comparison.cell.point.level
    return LevelRatio(level, comparison.cell.key, value.n, value.value, value.ci_low, value.ci_high)
