"""The budget of a cycle.

Formulas and limits: docs/results.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from specgate.contract import CellResult, CycleBudget, Run
from specgate.contract.cycle_budget import Waterfall
from specgate.contract.traffic import ExpertTraffic
from specgate.reports.common.figures import NONE, number, percent, ratio
from specgate.reports.common.parts import Entry, Picture, Table, left_out
from specgate.reports.pictures import svg
from specgate.reports.texts.explain import MEANING, advice, asked, moves

BUDGET: Final = "Time of a cycle, part by part"
WATERFALL: Final = "From acceptance length to speed-up"
TINTS: Final[Mapping[str, int]] = {"verify": 2, "draft": 3, "accept": 4, "commit": 6, "gap": 0}
"""Part of a cycle → its colour in the palette, in the order in which the parts are stacked."""
SEEN: Final = 0.005
"""A factor that is nearer to 1 than this in every role is not drawn. It is still in the table."""

Budgets = Sequence[tuple[CellResult, CycleBudget]]


def budgets_of(run: Run, results: Sequence[CellResult]) -> Budgets:
    """The cells whose times may be quoted, each with the time budget of its cycle."""
    return [(r, run.budgets[r.cell.key]) for r in results if r.cell.key in run.budgets]


# ── the cycle ────────────────────────────────────────────────────────────────────────────────────────────────────────


def budget(key: str, run: Run, budgets: Budgets) -> Picture:
    """A bar per role, with the parts of its cycle stacked, and a line for the least time that its bytes take."""
    split = [(r, b) for r, b in budgets if b.parts]
    if not split:
        return left_out(BUDGET, "the engine does not split its steps" if budgets else "no times may be quoted")
    floored = any(b.floor_ms is not None for _, b in split)

    def draw(axes: Any) -> None:
        for row, (_, cycle) in enumerate(split):
            draw_cycle(axes, row, cycle)
        for name, n in TINTS.items():
            axes.barh([0], [0], color=svg.tint(n), label=name)
        axes.set(xlabel="ms per cycle, or per step of the baseline", ylim=(len(split) - 0.45, -0.55))
        axes.set_yticks(range(len(split)), [r.cell.role_name for r, _ in split])
        axes.grid(axis="x", color=svg.GRID, linewidth=0.7)
        svg.legend(axes, len(TINTS))

    caption = "Mean over all measured blocks; gap: the host between the phases."
    if floored:
        caption += " Line below a bar: the least time that its bytes take at the measured bandwidth."
    else:
        caption += f" No floor is drawn: {next((b.no_floor for _, b in split if b.no_floor), 'none is known')}."
    words = "; ".join(_cycle_words(r, b) for r, b in split)
    drawing = svg.drawn(f"{key}-cycle", f"{BUDGET}. {words}.", draw, 1.0 + 0.42 * max(2, len(split)))
    notes = Table(("role", "what would help"), [[r.cell.role_name, advice(r.cell, b)] for r, b in split], texts=2)
    return Picture(BUDGET, caption, drawing, [part_table(split), notes, *expert_tables(split)])


def draw_cycle(axes: Any, row: int, cycle: CycleBudget) -> None:
    start = 0.0
    ms: Mapping[str, float] = {part.name: part.ms for part in cycle.parts}
    for name, n in TINTS.items():
        axes.barh([row], [ms.get(name, 0.0)], 0.56, left=[start], color=svg.tint(n))
        start += ms.get(name, 0.0)
    if cycle.floor_ms is not None:
        axes.plot([0, cycle.floor_ms], [row + 0.37] * 2, color=svg.INK, linewidth=2, solid_capstyle="butt")


def part_table(budgets: Budgets) -> Table:
    rows = []
    for result, cycle in budgets:
        for part in cycle.parts:
            share = percent(part.ms / cycle.cycle_ms if cycle.cycle_ms else None)
            floor = NONE if part.floor_ms is None else number(part.floor_ms)
            rows.append([result.cell.role_name, part.name, number(part.ms), share, moves(part), floor])
        floor = NONE if cycle.floor_ms is None else number(cycle.floor_ms)
        rows.append([result.cell.role_name, "cycle", number(cycle.cycle_ms), percent(1.0), NONE, floor])
    return Table(("role", "part", "ms", "share", "moves at least", "floor ms"), rows, texts=2)


def expert_tables(budgets: Budgets) -> Iterator[Table]:
    """Yield a table of the experts of a layer that the first tokens of a request's pass touch together, beside those
    that independent tokens touch, if an engine counts them token by token. `docs/definitions.md` has the overlap.
    """
    rows = [
        [
            result.cell.role_name,
            str(of.row),
            f"{of.touched:.2f}",
            f"{ExpertTraffic(1, use.count, use.active, 0).distinct(of.row):.2f}",
            NONE if of.overlap is None else f"{of.overlap:.2f}",
        ]
        for result, budget in budgets
        if (use := budget.experts) is not None and len(use.by_row) > 1
        for of in use.by_row
    ]
    if rows:
        yield Table(("role", "tokens", "experts touched", "independent", "overlap"), rows)


def _cycle_words(result: CellResult, cycle: CycleBudget) -> str:
    parts = ", ".join(f"{part.name} {number(part.ms)}" for part in cycle.parts)
    floor = f", floor {number(cycle.floor_ms)}" if cycle.floor_ms is not None else ""
    return f"{result.cell.role_name}: {number(cycle.cycle_ms)} milliseconds, of which {parts}{floor}"


# ── the speed-up ─────────────────────────────────────────────────────────────────────────────────────────────────────


def waterfall(key: str, run: Run, budgets: Budgets) -> Picture:
    """The factors of each role's speed-up, multiplied up bar by bar, with the policy's floors and the limit."""
    bars = [(r, b, b.waterfall) for r, b in budgets if b.waterfall is not None]
    if not bars:
        return left_out(WATERFALL, "no speed-up may be quoted")
    ratios = {r.cell.key: factors(w) for r, _, w in bars}
    names = [n for n in MEANING if any(abs(of.get(n, 1.0) - 1) >= SEEN for of in ratios.values())]

    def draw(axes: Any) -> None:
        width = 0.8 / len(bars)
        for lane, (result, cycle, found_) in enumerate(bars):
            offset = (lane - (len(bars) - 1) / 2) * width
            steps = [*(ratios[result.cell.key].get(n, 1.0) for n in names)]
            draw_lane(axes, steps, found_.speedup, offset, width * 0.9, result)
            if cycle.limit is not None:
                at = len(names) + offset
                axes.plot([at - width / 2, at + width / 2], [cycle.limit.highest] * 2, color=svg.INK, linewidth=2)
        for floor in sorted({c.min for _, b, _ in bars for c in b.ceilings}):
            axes.axhline(floor, color=svg.FLOOR, linewidth=1.4, zorder=1)
        axes.axhline(1, color=svg.MUTED, linewidth=1, linestyle=(0, (3, 3)), zorder=1)
        axes.set(ylabel="times the baseline")
        axes.set_xticks(range(len(names) + 1), [*names, "speed-up"])
        axes.margins(y=0.12)
        svg.ratio_axis(axes, "y")
        svg.rows_of_grid(axes)
        svg.legend(axes, len(bars))

    caption = "Each bar is a factor, from the product before it to the product after it; dashed: break-even"
    caption += "; red: what the policy asks" if any(b.ceilings for _, b, _ in bars) else ""
    caption += "; black: what this cycle would give at its floor" if any(b.limit for _, b, _ in bars) else ""
    caption += "."
    words = "; ".join(f"{r.cell.role_name}: {_factor_words(w)}, speed-up {ratio(w.speedup)}" for r, _, w in bars)
    drawing = svg.drawn(f"{key}-waterfall", f"{WATERFALL}. {words}.", draw)
    return Picture(WATERFALL, caption, drawing, [factor_table([(r, b) for r, b, _ in bars]), gate_table(run, budgets)])


def factors(waterfall: Waterfall) -> dict[str, float]:
    return {f.name: f.ratio for f in waterfall.factors}


def draw_lane(
    axes: Any, steps: Sequence[float], speedup: float, offset: float, width: float, result: CellResult
) -> None:
    """Draw the factors of one role as bars, each from the product before it, and then the speed-up as a bar from 1."""
    tint, product = svg.colour(result.cell.role), 1.0
    for at, step in enumerate(steps):
        low, high = sorted((product, product * step))
        axes.bar([at + offset], [high - low], width, bottom=[low], color=tint, alpha=0.55)
        product *= step
    low, high = sorted((1.0, speedup))
    axes.bar([len(steps) + offset], [high - low], width, bottom=[low], color=tint, label=result.cell.role_name)


def factor_table(budgets: Budgets) -> Table:
    falls = [b.waterfall for _, b in budgets if b.waterfall is not None]
    names = [n for n in MEANING if any(n in factors(w) for w in falls)]
    rows: list[list[str | Entry]] = [
        [Entry(n, MEANING[n]), *(ratio(factors(w).get(n, math.nan)) if n in factors(w) else NONE for w in falls)]
        for n in names
    ]
    rows.append(["speed-up", *(ratio(w.speedup) for w in falls)])
    limits = [b.limit for _, b in budgets]
    rows.append(["at most, cycle at its floor", *(ratio(x.highest) if x else NONE for x in limits)])
    rows.append(["at most, baseline at its floor too", *(ratio(x.at_floors) if x else NONE for x in limits)])
    return Table(("factor", *(r.cell.role_name for r, _ in budgets)), rows)


def gate_table(run: Run, budgets: Budgets) -> Table:
    """Return the acceptance length that each speed gate would take."""
    rows = [
        [r.cell.role_name, c.rule, f"{c.min:g}×", asked(run, r.cell, b, c)]
        for r, b in budgets
        if b.waterfall is not None
        for c in b.ceilings
    ]
    return Table(("role", "gate", "asks", "takes"), rows, texts=4)


def _factor_words(waterfall: Waterfall) -> str:
    return ", ".join(f"{f.name} {ratio(f.ratio)}" for f in waterfall.factors)
