"""The pictures of one point, each with its figures as a table, or with the reason why it is not there."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from specgate.core import CellResult, Comparison, Point, Policy, Role, Run
from specgate.reports import charts
from specgate.reports.figures import NONE, percent, ratio, span
from specgate.reports.tables import Table, all_figures, title


@dataclass(frozen=True, slots=True)
class Picture:
    """`svg` and `table` are None where there is nothing to draw; `caption` then says why."""

    name: str
    caption: str
    svg: str | None = None
    table: Table | None = None


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    pictures: Sequence[Picture]
    figures: Table


def sections(run: Run, policy: Policy) -> Iterator[Section]:
    for n, point in enumerate(dict.fromkeys(r.cell.point for r in run.cells)):
        results = [r for r in run.cells if r.cell.point == point]
        comparisons = [c for c in run.comparisons if c.cell.point == point]
        speculative = [r for r in results if r.acceptance is not None and r.acceptance.steps]
        pictures = [
            positions(f"p{n}", speculative),
            histogram(f"p{n}", speculative),
            speedups(f"p{n}", [c for c in comparisons if c.speedup.value is not None], floors(policy, point)),
            series(f"p{n}", quotable(results, comparisons)),
        ]
        yield Section(title(run, point), pictures, all_figures(run, point))


def positions(key: str, results: Sequence[CellResult]) -> Picture:
    name = "Acceptance by draft position"
    if not results:
        return Picture(name, "Left out: no step of this point had a draft.")
    deepest = max(r.cell.role.k for r in results)
    table = Table(
        ("role", "share of", *(f"draft {i}" for i in range(1, deepest + 1))),
        [
            [r.cell.role.name, of, *_padded([percent(s) for s in shares], deepest)]
            for r in results
            for of, shares in (
                ("all cycles", charts.positions(r)),
                ("cycles that accepted the draft before", charts.conditional(r)),
            )
        ],
        texts=2,
    )
    caption = "Solid: share of cycles in which the draft was accepted; dashed: of those that accepted the draft before."
    return Picture(name, caption, charts.acceptance_by_position(key, results), table)


def histogram(key: str, results: Sequence[CellResult]) -> Picture:
    name = "Accepted drafts per cycle"
    if not results:
        return Picture(name, "Left out: no step of this point had a draft.")
    deepest = max(r.cell.role.k for r in results)
    table = Table(
        ("role", *(str(i) for i in range(deepest + 1)), "cycles"),
        [
            [r.cell.role.name, *_padded([str(n) for n in r.acceptance.hist], deepest + 1), str(r.acceptance.steps)]
            for r in results
            if r.acceptance
        ],
    )
    caption = "How many of the drafts of one cycle were accepted; the bonus token comes on top."
    return Picture(name, caption, charts.accept_histogram(key, results), table)


def speedups(key: str, comparisons: Sequence[Comparison], floors: dict[Role, float]) -> Picture:
    name = "Speed-up over the paired baseline"
    if not comparisons:
        return Picture(name, "Left out: no pair of blocks whose speed may be quoted.")
    table = Table(
        ("role", "speed-up", "95 % interval", "pairs", "each pair"),
        [
            [
                c.cell.role.name,
                ratio(c.speedup.value or math.nan),
                span(c.speedup) or NONE,
                str(len(c.log_ratios)),
                " ".join(f"{math.exp(d):.2f}" for d in c.log_ratios),
            ]
            for c in comparisons
        ],
    )
    caption = "Dot: mean; thick line: 95 % interval; ▲ baseline ran first, ▼ spec ran first; dashed: break-even" + (
        "; red: what the policy asks." if floors else "."
    )
    return Picture(name, caption, charts.speedups(key, comparisons, floors), table)


def series(key: str, results: Sequence[CellResult]) -> Picture:
    name = "Blocks in time"
    if not results:
        return Picture(name, "Left out: no block whose speed may be quoted.")
    rounds = sorted({pair for r in results for pair, *_ in r.series_ms})
    by_role = [{pair: ms for pair, _, ms in r.series_ms} for r in results]
    table = Table(
        ("round", *(f"{r.cell.role.name} ms/token" for r in results)),
        [[str(i), *(f"{of[i]:.2f}" if i in of else NONE for of in by_role)] for i in rounds],
    )
    caption = "Milliseconds per token of one request. A grey line links the blocks of one round."
    return Picture(name, caption, charts.block_series(key, results), table)


def quotable(results: Sequence[CellResult], comparisons: Sequence[Comparison]) -> list[CellResult]:
    """Cells with timed blocks, without those whose tokens are not the baseline's."""
    withheld = {c.cell for c in comparisons if c.tokens.mismatches}
    return [r for r in results if r.series_ms and r.cell not in withheld]


def floors(policy: Policy, point: Point) -> dict[Role, float]:
    """What the policy's speed rules ask of the roles of a point."""
    rules = [r for r in policy.rules if r.gate == "speed" and fnmatchcase(point.scenario, r.scenario)]
    return {
        Role(k): float(rule.params["min"])
        for rule in rules
        for k in range(1, 10)
        if fnmatchcase(Role(k).name, rule.role) and "min" in rule.params
    }


def _padded(cells: Sequence[str], width: int) -> list[str]:
    return [*cells, *[NONE] * (width - len(cells))]
