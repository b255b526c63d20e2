"""Two pictures of a mixture of experts: how many experts neighbouring tokens touch, and how many each layer does.

`docs/definitions.md` defines the overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from specgate.contract import CellResult
from specgate.contract.routing import ExpertUse
from specgate.contract.traffic import ExpertTraffic
from specgate.reports.common.figures import NONE, number
from specgate.reports.common.parts import Picture, Table, left_out
from specgate.reports.pictures import svg
from specgate.reports.pictures.cycle import Budgets

BY_POSITION: Final = "Experts touched and overlap by position"
BY_LAYER: Final = "Experts touched by layer"
NOT_COUNTED: Final = "the engine does not count the experts that its passes touch"

Uses = Sequence[tuple[CellResult, ExpertUse]]


def uses_of(budgets: Budgets) -> Uses:
    """The cells of a target with experts, each with how it used them."""
    return [(result, budget.experts) for result, budget in budgets if budget.experts is not None]


def by_position(key: str, uses: Uses) -> Picture:
    """Above, the experts that the first n tokens of a request's pass touch together; below, their overlap. A line per
    role; dashed: independent tokens.
    """
    shown = [(r, u) for r, u in uses if len(u.by_row) > 1]
    if not shown:
        return left_out(BY_POSITION, why_not(counted(uses)))
    deepest = max((u for _, u in shown), key=lambda u: len(u.by_row))
    alone = [independent(deepest, n) for n in range(1, len(deepest.by_row) + 1)]

    def draw(panels: Sequence[Any]) -> None:
        touched, overlaps = panels
        touched.plot(range(1, len(alone) + 1), alone, "--", color=svg.MUTED, linewidth=1.1, label="independent")
        for n, (result, use) in enumerate(shown):
            tint, name, nudge = svg.colour(result.cell.role), result.cell.role_name, n * 0.03
            places = [of.row + nudge for of in use.by_row]
            touched.plot(places, [of.touched for of in use.by_row], "o-", color=tint, label=name)
            points = [(of.row + nudge, of.overlap) for of in use.by_row if of.overlap is not None]
            overlaps.plot([x for x, _ in points], [y for _, y in points], "o-", color=tint)
        overlaps.axhline(0, color=svg.MUTED, linewidth=1, linestyle=(0, (3, 3)), zorder=1)
        low = min((of.overlap for _, u in shown for of in u.by_row if of.overlap is not None), default=0.0)
        overlaps.set(xlabel="tokens of a request: its newest, then its drafts", ylabel="overlap")
        overlaps.set_ylim(min(-0.05, low - 0.05), 1.05)
        overlaps.set_xticks(range(1, len(alone) + 1))
        touched.set(ylabel="experts touched")
        touched.set_ylim(0, 1.1 * max(*alone, *(of.touched for _, u in shown for of in u.by_row)))
        for axes in panels:
            svg.rows_of_grid(axes)
            svg.few_ticks(axes.yaxis)
        handles, labels = touched.get_legend_handles_labels()
        touched.legend(handles, labels, loc="lower right", bbox_to_anchor=(1, 1), ncols=6, columnspacing=1.2)

    caption = (
        "Above: experts of a layer that the first tokens of a request's pass touch together, the mean; dashed: tokens "
        "that are routed independently. Below: the overlap of these tokens, 0 where they are routed independently and "
        "1 where they all choose the same experts."
    )
    words = "; ".join(position_words(r, u) for r, u in shown)
    drawing = svg.stacked(f"{key}-experts", f"{BY_POSITION}. {words}.", draw, (1, 1), 3.4)
    return Picture(BY_POSITION, caption, drawing, [position_table(shown), pass_table(counted(uses))])


def by_layer(key: str, uses: Uses) -> Picture:
    """The experts of each layer that a pass touches, the mean, with a line per role; dashed: independent tokens."""
    shown = counted(uses)
    if not shown:
        return left_out(BY_LAYER, NOT_COUNTED)

    def draw(axes: Any) -> None:
        for result, use in shown:
            tint = svg.colour(result.cell.role)
            axes.plot(range(len(use.by_layer)), use.by_layer, ".-", color=tint, label=result.cell.role_name)
            if use.independent > use.active:
                axes.axhline(use.independent, color=tint, linewidth=1.1, linestyle=(0, (4, 3)), zorder=1)
        axes.set(xlabel="layer", ylabel="experts touched per pass")
        axes.set_ylim(0, 1.1 * max(max(u.independent, *u.by_layer, u.active) for _, u in shown))
        svg.whole_ticks(axes)
        svg.rows_of_grid(axes)
        svg.legend(axes, len(shown))

    caption = "Mean over all passes; dashed, in the same colour: what tokens touch that are routed independently."
    words = "; ".join(
        f"{r.cell.role_name}: {number(min(u.by_layer))} to {number(max(u.by_layer))} of {u.count}" for r, u in shown
    )
    return Picture(BY_LAYER, caption, svg.drawn(f"{key}-layers", f"{BY_LAYER}. {words}.", draw), [layer_table(shown)])


def why_not(shown: Uses) -> str:
    """Return the reason why there is no picture by position of the cells `shown`, whose experts were counted."""
    if not shown:
        return NOT_COUNTED
    alone = all(max(of.rows) < 2 for _, u in shown for of in u.slots)
    return "no pass has two tokens of one request" if alone else "the engine does not count experts token by token"


def counted(uses: Uses) -> Uses:
    return [(r, u) for r, u in uses if u.counted]


def independent(use: ExpertUse, tokens: int) -> float:
    """The experts of a layer that independent tokens are expected to touch (`ExpertTraffic.distinct`)."""
    return ExpertTraffic(1, use.count, use.active, 0).distinct(tokens)


def position_table(shown: Uses) -> Table:
    rows = [
        [
            result.cell.role_name,
            str(of.row),
            f"{of.touched:.2f}",
            f"{independent(use, of.row):.2f}",
            NONE if of.overlap is None else f"{of.overlap:.2f}",
        ]
        for result, use in shown
        for of in use.by_row
    ]
    return Table(("role", "tokens", "touched", "independent", "overlap"), rows)


def pass_table(shown: Uses) -> Table:
    """By the tokens of a whole pass, all requests together."""
    rows = [
        [
            result.cell.role_name,
            str(of.rows),
            f"{of.passes:,}",
            f"{of.touched:.2f}",
            f"{of.low} … {of.high}",
            f"{independent(use, of.rows):.2f}",
        ]
        for result, use in shown
        for of in use.by_rows
    ]
    head = ("role", "tokens per pass", "passes", "touched", "p10 … p90", "independent")
    return Table(head, rows)


def layer_table(shown: Uses) -> Table:
    layers = range(max(len(u.by_layer) for _, u in shown))
    rows = [[str(layer), *(f"{u.by_layer[layer]:.2f}" for _, u in shown)] for layer in layers]
    return Table(
        ("layer", *(r.cell.role_name for r, _ in shown)), [*rows, ["all", *(f"{u.touched:.2f}" for _, u in shown)]]
    )


def position_words(result: CellResult, use: ExpertUse) -> str:
    at = ", ".join(f"{of.row} token{'s' * (of.row > 1)} {number(of.touched)}" for of in use.by_row)
    shared = ", ".join(f"{of.row} tokens {of.overlap:.2f}" for of in use.by_row if of.overlap is not None)
    overlaps = f"; overlap of {shared}" if shared else ""
    return f"{result.cell.role_name}: experts touched by {at} of {use.count}{overlaps}"
