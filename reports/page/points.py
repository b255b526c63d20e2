"""The section of one point in report.html: its pictures, each with its figures or the reason why it is missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from specgate.analysis.cell_names import cell_name
from specgate.contract import CellResult, Comparison, Point, Run
from specgate.contract.conditions import Timeline
from specgate.reports.common import own_prompts
from specgate.reports.common.parts import Picture, Table, left_out
from specgate.reports.common.summary import QUIET
from specgate.reports.common.tables import all_figures, title
from specgate.reports.pictures import acceptance, cycle, latency, machine, uptime

DRAWN: Final = 4
"""Most points whose pictures are drawn. A page with a hundred points' pictures would be slow to make and to open."""


@dataclass(frozen=True, slots=True)
class Section:
    """The section of one point. `name`: the title without the source of acceptance. `undrawn`: why there are no
    pictures, or None. `prompts`: what is known of prompts from a file, in words; `categories`: acceptance by category.
    """

    name: str
    title: str
    pictures: Sequence[Picture]
    figures: Table
    undrawn: str | None = None
    prompts: str | None = None
    categories: Table | None = None


def sections(run: Run) -> Iterator[Section]:
    points = list(dict.fromkeys(r.cell.point for r in run.cells))
    chosen = drawn_points(run, points)
    why = f"Left out: pictures are drawn of {DRAWN} points of {len(points)}, those with open verdicts first."
    for n, point in enumerate(points):
        drawn = point in chosen
        yield Section(
            cell_name(point.key, run.scenarios),
            title(run, point),
            list(pictures(f"p{n}", run, point)) if drawn else (),
            all_figures(run, point),
            None if drawn else why,
            ". ".join(own_prompts.of_point(run, point)) or None,
            own_prompts.by_category(run, point),
        )


def drawn_points(run: Run, points: Sequence[Point]) -> set[Point]:
    """The points whose pictures are drawn: first those with a required verdict that is not green, then those with an
    advisory one, then the others, in the order of the plan.
    """
    open_: dict[str, bool] = {}
    for verdict in run.verdicts:
        if verdict.state not in QUIET:
            open_[verdict.cell] = open_.get(verdict.cell, False) or verdict.required

    def need(point: Point) -> int:
        required = [open_[r.cell.key] for r in run.cells if r.cell.point == point and r.cell.key in open_]
        return -2 if any(required) else -1 if required else 0

    return set(sorted(points, key=need)[:DRAWN])


def pictures(key: str, run: Run, point: Point) -> Iterator[Picture]:
    """All pictures of a point. `key`: what the ids of their elements begin with."""
    results = [r for r in run.cells if r.cell.point == point]
    comparisons = [c for c in run.comparisons if c.cell.point == point]
    drafted = [r for r in results if r.acceptance is not None and r.acceptance.steps]
    quoted, paired = quotable(results, comparisons), [c for c in comparisons if c.speedup.value is not None]
    conditions = run.conditions.get(point.key)
    budgets = cycle.budgets_of(run, results)
    yield cycle.waterfall(key, run, budgets)
    yield cycle.budget(key, run, budgets)
    yield machine.over_time(key, conditions.timeline if conditions else Timeline(), paired)
    yield acceptance.by_position(key, drafted)
    yield acceptance.histogram(key, drafted)
    yield uptime.over_requests(key, drafted)
    yield latency.ecdf(key, "tpot_ms", quoted)
    if any("itl_ms" in result.distributions for result in quoted):
        yield latency.ecdf(key, "itl_ms", quoted)
    if run.kind != "micro":
        yield latency.ecdf(key, "ttft_ms", quoted)
    else:
        yield left_out(latency.NAMES["ttft_ms"], "a micro run measures no whole requests")


def quotable(results: Sequence[CellResult], comparisons: Sequence[Comparison]) -> list[CellResult]:
    """The cells whose times may be quoted: they have timed blocks, and their tokens are the baseline's."""
    withheld = {c.cell for c in comparisons if c.tokens.defects}
    return [r for r in results if r.series_ms and r.cell not in withheld]
