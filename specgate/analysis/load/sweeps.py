"""Collect the cells of a sweep: those of one scenario, context and draft length, at every level of load."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from specgate.analysis.intervals.autocorrelation import fit
from specgate.analysis.intervals.between_runs import ASSUMED
from specgate.analysis.intervals.levels import FALSE_FAIL, FALSE_PASS, spent
from specgate.analysis.load.break_even import CONFIDENCE, Level, break_even_of, side_of
from specgate.analysis.stats import planned_interim_looks
from specgate.contract import BetweenRuns, Cell, Comparison, Scenario
from specgate.contract.load import BreakEven, LevelRatio

Sweep = tuple[str, str, int, int]
"""(scenario, back end, context, draft length)."""


def sweep_of(cell: Cell) -> Sweep:
    """The sweep that a cell belongs to."""
    return cell.point.scenario, cell.point.backend, cell.point.context, cell.role.k


def sweeps(scenarios: Mapping[str, Scenario], comparisons: Iterable[Comparison]) -> Iterator[Sequence[Comparison]]:
    """The comparisons of every sweep of a load scenario, by ascending level."""
    by_sweep: dict[Sweep, list[Comparison]] = defaultdict(list)
    for comparison in comparisons:
        if scenarios[comparison.cell.point.scenario].load is not None:
            by_sweep[sweep_of(comparison.cell)].append(comparison)
    for sweep in by_sweep.values():
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
        outcome=break_even.outcome,
        value=break_even.value,
        low=break_even.low,
        high=break_even.high,
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
    look = max(1, sum(look <= max(c.turns) + 1 for look in planned_interim_looks(scenario)))
    errors = spent(FALSE_PASS, look), spent(FALSE_FAIL / decisions_in(scenario), look)
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
