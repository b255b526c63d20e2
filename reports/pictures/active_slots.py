"""Picture of the step time over the slots that still decode: do slots that have ended cost anything?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from specgate.contract import CellResult, Point, Run
from specgate.reports.common.figures import NONE, number
from specgate.reports.common.parts import Entry, Picture, Table
from specgate.reports.pictures import svg

NAME: Final = "Step time by slots that still decode"

Alone = Mapping[tuple[str, int], float]
"""(role, batch) → milliseconds of a step in which all slots of a batch of that size decode."""


def by_active(key: str, results: Sequence[CellResult], alone: Alone) -> Picture:
    """`results`: the cells of one point, some of whose slots ended before others. `alone`: see `batches_alone`."""

    def draw(axes: Any) -> None:
        for result in results:
            timed = [(b.active, b.step_ms) for b in result.by_active if b.step_ms is not None]
            tint = svg.colour(result.cell.role)
            axes.plot([n for n, _ in timed], [ms for _, ms in timed], "o-", color=tint, label=result.cell.role_name)
            same = [(n, alone[result.cell.role_name, n]) for n, _ in timed if (result.cell.role_name, n) in alone]
            if same:
                axes.plot(*zip(*same, strict=True), "x", color=tint, markersize=9, label="_a batch of as many")
        axes.set(xlabel="slots that still decode", ylabel="ms per step", ylim=(0, axes.get_ylim()[1] * 1.1))
        svg.whole_ticks(axes)
        svg.rows_of_grid(axes)
        svg.legend(axes, len(results))

    caption = "Median time of a step by how many of its slots had not ended. "
    if any((r.cell.role_name, b.active) in alone for r in results for b in r.by_active):
        caption += "Crosses: a batch of as many slots, all of which decode."
    else:
        caption += "The run has no smaller batches to compare with."
    drawing = svg.drawn(f"{key}-active", f"{NAME}. {'; '.join(map(_words, results))}.", draw, 2.6)
    return Picture(NAME, caption, drawing, [table(results, alone)])


def batches_alone(run: Run, point: Point) -> Alone:
    """Return the step time of smaller batches of the same scenario, back end, context and role, all slots at work."""
    times: dict[tuple[str, int], float] = {}
    for result in run.cells:
        of = result.cell.point
        if (of.scenario, of.backend, of.context) != (point.scenario, point.backend, point.context):
            continue
        for b in result.by_active:
            if b.active == of.batch < point.batch and b.step_ms is not None:
                times[result.cell.role_name, of.batch] = b.step_ms
    return times


def table(results: Sequence[CellResult], alone: Alone) -> Table:
    rows: list[list[str | Entry]] = []
    for result in results:
        role = result.cell.role_name
        for b in result.by_active:
            same = alone.get((role, b.active))
            share = NONE if b.step_ms is None or same is None else f"{b.step_ms / same:.3f}"
            times = [NONE if ms is None else number(ms) for ms in (b.step_ms, same)]
            rows.append([role, str(b.active), *times, share, f"{b.steps:,}"])
    return Table(("role", "slots", "ms per step", "a batch of as many, ms", "ratio", "steps"), rows)


def _words(result: CellResult) -> str:
    times = [f"{b.active} slots {number(b.step_ms)} ms" for b in result.by_active if b.step_ms is not None]
    return f"{result.cell.role_name}: {', '.join(times) or 'withheld'}"
