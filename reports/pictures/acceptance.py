"""Pictures of how many draft tokens were accepted, and up to which position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specgate.contract import CellResult, Value
from specgate.reports.common.figures import NONE, percent, span
from specgate.reports.common.parts import Entry, Picture, Table, left_out
from specgate.reports.pictures import svg

_NO_DRAFT = "no step of this point had a draft"


def by_position(key: str, results: Sequence[CellResult]) -> Picture:
    """The share of the steps with a draft i that accepted it, over i, with a line per role.

    The dashed line is the share among those that accepted draft i − 1.
    """
    name = "Acceptance by draft position"
    if not results:
        return left_out(name, _NO_DRAFT)

    def draw(axes: Any) -> None:
        for n, result in enumerate(results):
            draw_role(axes, result, nudge=(n - (len(results) - 1) / 2) * 0.05, labelled=result is results[-1])
        deepest = max(r.cell.role.k for r in results)
        axes.set(xlabel="draft position", ylabel="accepted", xlim=(0.7, deepest + 0.3), ylim=(0, 1.06))
        axes.set_xticks(range(1, deepest + 1))
        svg.rows_of_grid(axes)
        svg.percents(axes)
        svg.legend(axes, len(results))

    caption = (
        "Solid: of the cycles that proposed the draft, the share that accepted it, with its 95 % interval on prompts "
        "like these; dashed: of those that accepted the draft before."
    )
    words = f"{name}. {'; '.join(map(_words, results))}."
    return Picture(name, caption, svg.drawn(f"{key}-positions", words, draw), [_position_table(results)])


def draw_role(axes: Any, result: CellResult, nudge: float, labelled: bool) -> None:
    points = [(i + nudge, share, value) for i, share, value in known(shares(result))]
    given = [(i + nudge, share) for i, share, _ in known(conditional(result))]
    tint = svg.colour(result.cell.role)
    axes.plot([x for x, _ in given], [y for _, y in given], "--", color=tint, linewidth=1.1, alpha=0.8)
    axes.plot([x for x, *_ in points], [y for _, y, _ in points], "o-", color=tint, label=result.cell.role_name)
    for x, share, value in points:
        if value.ci_low is not None and value.ci_high is not None:
            axes.plot([x, x], [value.ci_low, value.ci_high], color=tint, linewidth=4, alpha=0.3, zorder=1)
        if labelled:
            # Labels go below the line, since the dashed line is never there, unless they would cover the axis.
            place = (0, -13) if share > 0.15 else (0, 6)
            axes.annotate(f"{share:.0%}", (x, share), place, textcoords="offset points", ha="center")


def known(values: Sequence[Value | None]) -> list[tuple[int, float, Value]]:
    """(position, share, value) for every value that is known. Positions count from 1."""
    return [(i, v.value, v) for i, v in enumerate(values, 1) if v is not None and v.value is not None]


def shares(result: CellResult) -> list[Value | None]:
    """Per draft position, the share that accepted the draft, of the steps that proposed it."""
    return [result.values.get(f"acceptance_at_pos[{i}]") for i in range(1, result.cell.role.k + 1)]


def conditional(result: CellResult) -> list[Value | None]:
    """Per draft position, the same share, among those that accepted the one before."""
    return [result.values.get(f"cond_acceptance_at_pos[{i}]") for i in range(1, result.cell.role.k + 1)]


def _position_table(results: Sequence[CellResult]) -> Table:
    deepest = max(r.cell.role.k for r in results)

    def row(result: CellResult, of: str, values: Sequence[Value | None]) -> list[str | Entry]:
        entries = [Entry(percent(v.value if v else None), span(v)) for v in values]
        return [result.cell.role_name, of, *entries, *[NONE] * (deepest - len(entries))]

    rows = [
        row(r, of, values)
        for r in results
        for of, values in (
            ("cycles that proposed the draft", shares(r)),
            ("those that accepted the draft before", conditional(r)),
        )
    ]
    return Table(("role", "share of", *(f"draft {i}" for i in range(1, deepest + 1))), rows, texts=2)


def _words(result: CellResult) -> str:
    at = ", ".join(f"position {i} {share:.0%}" for i, share, _ in known(shares(result)))
    given = ", ".join(f"{share:.0%}" for _, share, _ in known(conditional(result)))
    return f"{result.cell.role_name}: {at}; given the draft before: {given}"


def histogram(key: str, results: Sequence[CellResult]) -> Picture:
    """The share of steps that accepted exactly i drafts, with a bar per role and i."""
    name = "Accepted drafts per cycle"
    if not results:
        return left_out(name, _NO_DRAFT)
    deepest = max(r.acceptance.k if r.acceptance else 0 for r in results)

    def draw(axes: Any) -> None:
        width = 0.8 / len(results)
        for n, result in enumerate(results):
            cycles = of_cycles(result)
            at = [i + (n - (len(results) - 1) / 2) * width for i in range(len(cycles))]
            axes.bar(at, cycles, width * 0.92, color=svg.colour(result.cell.role), label=result.cell.role_name)
            if len(results) == 1:
                for x, share in zip(at, cycles, strict=True):
                    axes.annotate(f"{share:.0%}", (x, share), (0, 3), textcoords="offset points", ha="center")
        axes.set(xlabel="drafts accepted in a cycle", ylabel="cycles")
        axes.set_xticks(range(deepest + 1))
        axes.margins(y=0.12)
        svg.rows_of_grid(axes)
        svg.percents(axes)
        svg.legend(axes, len(results))

    words = "; ".join(f"{r.cell.role_name}: {', '.join(f'{s:.0%}' for s in of_cycles(r))}" for r in results)
    table = Table(("role", *map(str, range(deepest + 1)), "cycles"), [_histogram_row(r, deepest) for r in results])
    caption = "How many of the drafts of one cycle were accepted; the bonus token comes on top."
    if skipped := [f"{skipped_share(r):.0%} ({r.cell.role_name})" for r in results if skipped_share(r)]:
        caption += f" Cycles without a draft, which the method may have, are left out: {', '.join(skipped)} of all."
    return Picture(name, caption, svg.drawn(f"{key}-histogram", f"Cycles by accepted drafts. {words}.", draw), [table])


def skipped_share(result: CellResult) -> float:
    """The share of steps without a draft, of a method that need not draft."""
    record = result.acceptance
    return (record.skipped or 0) / record.counted_steps if record and record.counted_steps else 0.0


def of_cycles(result: CellResult) -> list[float]:
    """The share of steps that accepted 0, 1, … drafts; empty if no step had a draft."""
    record = result.acceptance
    return [n / record.steps for n in record.hist] if record and record.steps else []


def _histogram_row(result: CellResult, deepest: int) -> list[str | Entry]:
    record = result.acceptance
    assert record is not None
    counts = [Entry(f"{n:,}", percent(n / record.steps)) for n in record.hist]
    return [result.cell.role_name, *counts, *[NONE] * (deepest + 1 - len(counts)), f"{record.steps:,}"]
