"""Two pictures of acceptance over many requests: the acceptance length of every row of a table, and how acceptance
falls off with the draft position.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from specgate.analysis.speculation.summary import AcceptanceSummary
from specgate.contract import Role, Value
from specgate.reports.common.figures import percent
from specgate.reports.common.parts import Picture, left_out
from specgate.reports.pictures import svg

Rows = Sequence[tuple[str, AcceptanceSummary]]
"""(name, summary) of every row of a table, in its order."""
SHOWN: Final = 40
"""Most rows that are drawn. The table has all of them."""
LINES: Final = 8
"""Most lines in one picture: as many as can be told apart by colour and marker."""
MARKERS: Final = "osD^vPX*"
"""Marker of every line, so that it is told from the others without its colour."""
_WIDTH: Final = 9.0
"""Inches."""


def lengths(key: str, rows: Rows) -> Picture:
    """The acceptance length of every row with its interval, and that of the requests whose text does not loop.

    `key`: what the ids of its elements begin with.
    """
    name = "Acceptance length"
    drafting = [(label, s) for label, s in rows if s.num_drafts]
    if not drafting:
        return left_out(name, "no step had a draft")
    shown = drafting[:SHOWN]
    some_loop = any(s.without_loops for _, s in shown)
    caption = "Dot: tokens per cycle, bonus token included; line: 95 % interval on prompts like these" + (
        "; ring: without the requests whose text loops." if some_loop else "."
    )
    if len(shown) < len(drafting):
        caption += f" Drawn are the first {len(shown)} of {len(drafting)}; the table has all."
    words = "; ".join(f"{label}: {in_words(s)}" for label, s in shown[:12])
    words += f"; and {len(drafting) - 12} more in the table" if len(drafting) > 12 else ""
    height = 0.72 + 0.3 * max(2, len(shown))
    drawing = svg.fitted(key, f"{name}. {words}.", lambda axes: draw_lengths(axes, shown), _WIDTH, height)
    return Picture(name, caption, drawing, wide=True)


def draw_lengths(axes: Any, rows: Rows) -> None:
    for at, (_, s) in enumerate(rows):
        tint = svg.colour(Role(s.group.k))
        draw_value(axes, at, s.values["acceptance_length"], tint)
        if s.without_loops is not None:
            draw_value(axes, at + 0.24, s.without_loops, tint, ring=True)
    axes.set(xlabel="tokens per cycle", ylim=(len(rows) - 0.4, -0.6))
    axes.set_yticks(range(len(rows)), [svg.literally(label) for label, _ in rows])
    axes.grid(axis="x", color=svg.GRID, linewidth=0.7)
    axes.set_xlim(1, axes.get_xlim()[1])
    svg.plain_ticks(axes.xaxis)
    beside = axes.twinx()
    beside.set_ylim(axes.get_ylim())
    beside.set_yticks(range(len(rows)), [in_words(s) for _, s in rows])
    beside.tick_params(length=0)
    beside.spines["right"].set_visible(False)


def draw_value(axes: Any, at: float, value: Value, tint: str, *, ring: bool = False) -> None:
    """A dot, or a ring, with its interval, at the height `at`."""
    if value.ci_low is not None and value.ci_high is not None:
        style: dict[str, Any] = {"linewidth": 1.3} if ring else {"linewidth": 4, "alpha": 0.35}
        axes.plot([value.ci_low, value.ci_high], [at, at], color=tint, zorder=2, **style)
    face = svg.SURFACE if ring else tint
    axes.plot([value.value], [at], "o", color=tint, mfc=face, mec=tint, mew=1.4, markersize=5 if ring else 7, zorder=3)


def in_words(s: AcceptanceSummary) -> str:
    """The acceptance length, and how it is without the requests whose text loops."""
    length = f"{s.value('acceptance_length') or 1:.2f}"
    if s.without_loops is None:
        return f"{length}, all loop" if s.looping_prompts else length
    return f"{length}, without loops {s.without_loops.value or 1:.2f}"


def by_position(key: str, rows: Rows) -> Picture:
    """The share of drafts accepted, over the draft position, with a line per row; dashed: given the draft before.

    `key`: what the ids of its elements begin with.
    """
    name = "Acceptance by draft position"
    counted = [(label, s) for label, s in rows if s.positions]
    if not counted:
        return left_out(name, "no engine counted drafts by position")
    shown = counted[:LINES]

    def draw(axes: Any) -> None:
        for n, (label, s) in enumerate(shown):
            draw_line(axes, s, svg.tint(n + 1), MARKERS[n], label, (n - (len(shown) - 1) / 2) * 0.03)
        deepest = max(s.positions for _, s in shown)
        axes.set(xlabel="draft position", ylabel="accepted", xlim=(0.7, deepest + 0.3), ylim=(0, 1.06))
        axes.set_xticks(range(1, deepest + 1))
        svg.rows_of_grid(axes)
        svg.percents(axes)
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))

    caption = (
        "Solid: share of the cycles that proposed the draft in which it was accepted, with its 95 % interval over "
        "prompts; dashed: of those that accepted the draft before."
    )
    if len(shown) < len(counted):
        caption += f" Drawn are the first {len(shown)} of {len(counted)}; the table has all."
    words = "; ".join(f"{label}: {shares_in_words(s)}" for label, s in shown)
    return Picture(name, caption, svg.fitted(key, f"{name}. {words}.", draw, _WIDTH, 3.0), wide=True)


def draw_line(axes: Any, s: AcceptanceSummary, tint: str, marker: str, label: str, nudge: float) -> None:
    at = [s.values[f"acceptance_at_pos[{i}]"] for i in range(1, s.positions + 1)]
    given = [s.values[f"cond_acceptance_at_pos[{i}]"] for i in range(1, s.positions + 1)]
    solid, dashed = (
        [(i + nudge, v.value, v) for i, v in enumerate(of, 1) if v.value is not None] for of in (at, given)
    )
    axes.plot([x for x, *_ in dashed], [y for _, y, _ in dashed], "--", color=tint, linewidth=1.1, alpha=0.8)
    axes.plot([x for x, *_ in solid], [y for _, y, _ in solid], f"{marker}-", color=tint, label=svg.literally(label))
    for x, _, value in solid:
        if value.ci_low is not None and value.ci_high is not None:
            axes.plot([x, x], [value.ci_low, value.ci_high], color=tint, linewidth=4, alpha=0.3, zorder=1)


def shares_in_words(s: AcceptanceSummary) -> str:
    return ", ".join(f"position {i} {percent(s.value(f'acceptance_at_pos[{i}]'))}" for i in range(1, s.positions + 1))
