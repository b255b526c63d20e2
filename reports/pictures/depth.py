"""Picture of acceptance length and step time over the depth of the KV cache: does either change as a request grows?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specgate.contract import CellResult
from specgate.reports.common.figures import NONE, number
from specgate.reports.common.parts import Entry, Picture, Table, left_out
from specgate.reports.pictures import svg


def by_depth(key: str, results: Sequence[CellResult], *, own_lengths: bool = False) -> Picture:
    """Two panels over cache depth. `results`: the cells of one point that have figures by depth.

    `own_lengths`: its prompts differ in length, so that depth can only be counted from their ends.
    """
    name = "Acceptance length and step time against cache depth"
    if not results:
        return left_out(name, "the run keeps no steps by depth")
    context = None if own_lengths else results[0].cell.point.context
    beyond = "the prompt" if context is None else f"the {context:,} of the prompt"

    def draw(panels: Sequence[Any]) -> None:
        lengths, times = panels
        for result in results:
            draw_length(lengths, result)
            timed = [(b.depth, b.step_ms) for b in result.by_depth if b.step_ms is not None]
            tint = svg.colour(result.cell.role)
            times.plot([x for x, _ in timed], [y for _, y in timed], "o-", color=tint, label=result.cell.role_name)
        lengths.set(ylabel="acceptance length")
        times.set(xlabel=f"tokens in the cache beyond {beyond}", ylabel="ms per step")
        for axes, least in ((lengths, 1), (times, 0)):
            top = axes.get_ylim()[1]
            axes.set_ylim(least, top + 0.1 * (top - least))
            svg.rows_of_grid(axes)
            svg.few_ticks(axes.yaxis)
        handles, labels = times.get_legend_handles_labels()
        lengths.legend(handles, labels, loc="lower right", bbox_to_anchor=(1, 1), ncols=6, columnspacing=1.2)

    caption = "Steps by the depth at which they began. Above: tokens per cycle, with 95 % intervals on prompts like "
    caption += "these; below: median time of a step."
    drawing = svg.stacked(f"{key}-depth", f"{name}. {'; '.join(map(_words, results))}.", draw, (1, 1), 3.4)
    return Picture(name, caption, drawing, [table(results, context)])


def draw_length(axes: Any, result: CellResult) -> None:
    bins = [b for b in result.by_depth if b.acceptance_length is not None]
    tint = svg.colour(result.cell.role)
    axes.plot([b.depth for b in bins], [b.acceptance_length for b in bins], "o-", color=tint)
    if spans := [(b.depth, b.ci_low, b.ci_high) for b in bins if b.ci_low is not None]:
        axes.vlines(*zip(*spans, strict=True), color=tint, linewidth=4, alpha=0.3, zorder=1)


def table(results: Sequence[CellResult], context: int | None) -> Table:
    rows: list[list[str | Entry]] = []
    for result in results:
        for b in result.by_depth:
            low, high = b.ci_low, b.ci_high
            span = f"{low:.2f} … {high:.2f}" if low is not None and high is not None else None
            length = Entry(NONE if b.acceptance_length is None else f"{b.acceptance_length:.2f}", span)
            ms = NONE if b.step_ms is None else number(b.step_ms)
            rows.append([result.cell.role_name, f"{(context or 0) + b.depth:,.0f}", length, ms, f"{b.steps:,}"])
    depth = "beyond the prompt" if context is None else "cached positions"
    return Table(("role", depth, "acceptance length", "ms per step", "steps"), rows)


def _words(result: CellResult) -> str:
    lengths = [b.acceptance_length for b in result.by_depth if b.acceptance_length is not None]
    times = [b.step_ms for b in result.by_depth if b.step_ms is not None]
    parts = [
        f"{what} {number(figures[0])} at the beginning, {number(figures[-1])} at the end"
        for what, figures in (("acceptance length", lengths), ("milliseconds per step", times))
        if figures
    ]
    return f"{result.cell.role_name}: {', '.join(parts) or 'withheld'}"
