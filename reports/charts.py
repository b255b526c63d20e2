"""Pictures as inline SVG: matplotlib draws them, the page's style sheet colours them.

Colours are drawn as placeholders and replaced by CSS variables, so that one picture serves a light and a dark page.
The same data give the same bytes: settings start from matplotlib's defaults, ids from a fixed salt, and no date.
`key` begins every id of a picture and must be the page's only one of its kind.
"""

from __future__ import annotations

import html
import io
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from specgate.core import CellResult, Comparison, Role

_STYLE: Mapping[str, object] = {
    "svg.hashsalt": "specgate",
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.axisbelow": True,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "legend.frameon": False,
    "legend.handlelength": 1.1,
    "legend.borderpad": 0.0,
    "path.simplify": False,
}
_INK, _MUTED, _GRID, _FLOOR, _SURFACE = "#0d0001", "#0d0002", "#0d0003", "#0d0004", "#0d0005"
_VARIABLES = {_INK: "--ink", _MUTED: "--muted", _GRID: "--line", _FLOOR: "--fail", _SURFACE: "--surface"}
_UNWANTED = re.compile(
    r"<metadata>.*?</metadata>\s*|<defs>\s*<style.*?</style>\s*</defs>\s*|font-family: [^;]*; ", re.DOTALL
)
_ROLES = 9
_WIDTH, _HEIGHT = 5.6, 2.7
"""Inches; the page scales them to its column."""


def colour(role: Role) -> str:
    """The placeholder of a role's colour: `--role-0` for the baseline, `--role-k` for spec-k; the ninth repeats."""
    return f"#0d01{role.k % _ROLES:02x}"


def acceptance_by_position(key: str, results: Sequence[CellResult]) -> str:
    """Share of steps whose draft i was accepted, over i, a line per role; dashed, given that draft i − 1 was."""

    def draw(axes: Any) -> None:
        longest = max(r.cell.role.k for r in results)
        for result in results:
            shares = [s for s in positions(result) if s is not None]
            given = [s for s in conditional(result) if s is not None]
            at, tint = range(1, len(shares) + 1), colour(result.cell.role)
            axes.plot(at[: len(given)], given, "--", color=tint, linewidth=1.1, alpha=0.8)
            axes.plot(at, shares, "o-", color=tint, label=result.cell.role.name, clip_on=False)
            for i, share in zip(at, shares, strict=True):
                if result is results[-1]:
                    # Below the line, where the dashed one never is, but not on the axis.
                    place = (0, -13) if share > 0.15 else (0, 6)
                    axes.annotate(f"{share:.0%}", (i, share), place, textcoords="offset points", ha="center")
        axes.set(xlabel="draft position", ylabel="accepted", xlim=(0.7, longest + 0.3), ylim=(0, 1.06))
        axes.set_xticks(range(1, longest + 1))
        _percents(axes)
        _legend(axes, len(results))

    return _svg(f"{key}-positions", _described("Acceptance by draft position", _position_words(results)), draw)


def accept_histogram(key: str, results: Sequence[CellResult]) -> str:
    """Share of steps with exactly i accepted drafts, a bar per role and i."""

    def draw(axes: Any) -> None:
        width = 0.8 / len(results)
        for n, result in enumerate(results):
            shares = histogram(result)
            offset = (n - (len(results) - 1) / 2) * width
            at = [i + offset for i in range(len(shares))]
            axes.bar(at, shares, width * 0.92, color=colour(result.cell.role), label=result.cell.role.name)
            if len(results) == 1:
                for x, share in zip(at, shares, strict=True):
                    axes.annotate(f"{share:.0%}", (x, share), (0, 3), textcoords="offset points", ha="center")
        axes.set(xlabel="drafts accepted in a cycle", ylabel="cycles")
        axes.set_xticks(range(max(r.cell.role.k for r in results) + 1))
        axes.margins(y=0.12)
        _percents(axes)
        _legend(axes, len(results))

    words = "; ".join(f"{r.cell.role}: {', '.join(f'{s:.0%}' for s in histogram(r))}" for r in results)
    return _svg(f"{key}-histogram", _described("Cycles by number of accepted drafts", words), draw)


def block_series(key: str, results: Sequence[CellResult]) -> str:
    """Milliseconds per token of every block in running order; the blocks of one round are linked."""

    def draw(axes: Any) -> None:
        rounds: dict[int, list[tuple[float, float]]] = {}
        for result in results:
            roles = len(results)
            spots = [(pair + (slot - (roles - 1) / 2) * 0.5 / roles, ms) for pair, slot, ms in result.series_ms]
            for (pair, *_), spot in zip(result.series_ms, spots, strict=True):
                rounds.setdefault(pair, []).append(spot)
            at, ms = [x for x, _ in spots], [y for _, y in spots]
            axes.plot(at, ms, "o", color=colour(result.cell.role), label=result.cell.role.name, zorder=3)
        for linked in rounds.values():
            linked.sort()
            axes.plot([x for x, _ in linked], [y for _, y in linked], color=_MUTED, alpha=0.45, linewidth=1, zorder=1)
        axes.set(xlabel="round, in running order", ylabel="ms per token", ylim=(0, None))
        _whole_ticks(axes)
        _legend(axes, len(results) if len(results) > 1 else 2)

    times = {r.cell.role: [ms for *_, ms in r.series_ms] for r in results}
    words = "; ".join(f"{role}: {min(ms):.1f} to {max(ms):.1f} ms per token" for role, ms in times.items())
    return _svg(f"{key}-series", _described("Time per token of every block", words), draw)


def speedups(key: str, comparisons: Sequence[Comparison], floors: Mapping[Role, float]) -> str:
    """Every pair's speed-up, its mean with interval, break-even at 1, and the policy's floor where there is one."""

    def draw(axes: Any) -> None:
        for row, comparison in enumerate(comparisons):
            role = comparison.cell.role
            pairs = list(zip(comparison.log_ratios, comparison.orders, strict=True))
            for marker, sign in (("^", 1), ("v", -1)):
                found = [math.exp(d) for d, order in pairs if order == sign]
                axes.plot(found, [row + 0.2 * sign] * len(found), marker, color=colour(role), alpha=0.55, markersize=4)
            value = comparison.speedup
            if value.ci_low is not None and value.ci_high is not None:
                axes.plot([value.ci_low, value.ci_high], [row, row], color=colour(role), linewidth=3.2, zorder=3)
            axes.plot([value.value], [row], "o", color=colour(role), mec=_SURFACE, markersize=8, zorder=4)
            if role in floors:
                axes.plot([floors[role]] * 2, [row - 0.36, row + 0.36], color=_FLOOR, linewidth=1.5, zorder=2)
                place = ((floors[role], row - 0.38), (0, 1))
                axes.annotate(f"asked {floors[role]:g}", *place, textcoords="offset points", ha="center", va="bottom")
        axes.axvline(1, color=_MUTED, linewidth=1, linestyle=(0, (3, 3)), zorder=1)
        axes.set(xlabel="times the baseline's tokens per second", ylim=(len(comparisons) - 0.45, -0.55))
        axes.set_yticks(range(len(comparisons)), [c.cell.role.name for c in comparisons])
        axes.grid(axis="y", visible=False)
        axes.grid(axis="x", color=_GRID, linewidth=0.7)
        axes.margins(x=0.08)
        _ratio_axis(axes)

    words = "; ".join(f"{c.cell.role}: {c.speedup.value:.2f} over {len(c.log_ratios)} pairs" for c in comparisons)
    height = max(_HEIGHT, 1.1 + 0.5 * len(comparisons))
    return _svg(f"{key}-speedups", _described("Speed-up of every pair of blocks", words), draw, height)


# ── figures of a cell ────────────────────────────────────────────────────────────────────────────────────────────────


def positions(result: CellResult) -> tuple[float | None, ...]:
    return result.acceptance.acceptance_at_pos if result.acceptance else ()


def conditional(result: CellResult) -> tuple[float | None, ...]:
    return result.acceptance.cond_acceptance_at_pos if result.acceptance else ()


def histogram(result: CellResult) -> list[float]:
    """Shares of steps; empty where no step had a draft."""
    record = result.acceptance
    return [n / record.steps for n in record.hist] if record and record.steps else []


def _position_words(results: Sequence[CellResult]) -> str:
    def of(result: CellResult) -> Iterator[str]:
        return (f"position {i} {s:.0%}" for i, s in enumerate(positions(result), 1) if s is not None)

    def given(result: CellResult) -> Iterator[str]:
        return (f"{s:.0%}" for s in conditional(result) if s is not None)

    said = ((r.cell.role, ", ".join(of(r)), ", ".join(given(r))) for r in results)
    return "; ".join(f"{role}: {shares}; given the draft before: {chances}" for role, shares, chances in said)


def _described(title: str, words: str) -> str:
    return f"{title}. {words}."


# ── drawing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _svg(name: str, description: str, draw: Callable[[Any], None], height: float = _HEIGHT) -> str:
    import matplotlib
    from matplotlib.figure import Figure

    buffer = io.StringIO()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        axes = figure.add_subplot()
        axes.grid(axis="y", color=_GRID, linewidth=0.7)
        draw(axes)
        _tint(axes)
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return _for_page(buffer.getvalue(), name, description)


def _tint(axes: Any) -> None:
    axes.tick_params(colors=_MUTED, labelcolor=_INK)
    for spine in axes.spines.values():
        spine.set_color(_MUTED)
    for text in (axes.xaxis.label, axes.yaxis.label):
        text.set_color(_MUTED)
    for text in axes.texts:
        text.set_color(_INK)
    if legend := axes.get_legend():
        for text in legend.get_texts():
            text.set_color(_INK)


def _percents(axes: Any) -> None:
    from matplotlib.ticker import PercentFormatter

    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def _whole_ticks(axes: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _ratio_axis(axes: Any) -> None:
    """Logarithmic, since the mean and its interval are of logarithms; labelled as plain numbers, 1 among them."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xscale("log")
    low, high = axes.get_xlim()
    ticks = {1.0, *(float(t) for t in MaxNLocator(8, steps=[1, 2, 5, 10]).tick_values(low, high) if low < t < high)}
    axes.set_xticks(sorted(ticks), [f"{t:g}" for t in sorted(ticks)])
    axes.set_xticks([], minor=True)


def _legend(axes: Any, entries: int) -> None:
    if entries > 1:
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=min(entries, 6), columnspacing=1.2)


def _for_page(svg: str, name: str, description: str) -> str:
    """The `<svg>` element alone: ids of its own, CSS colours, a text for those who do not see it, and no fixed size."""
    svg = svg[svg.index("<svg") :]
    # Gone: metadata, a style sheet that would apply to the whole page, and a font that the page chooses.
    svg = _UNWANTED.sub("", svg)
    svg = svg.replace("xlink:href", "href")
    svg = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    svg = re.sub(r"#0d01(\w\w)", lambda m: f"var(--role-{int(m[1], 16)})", svg)
    svg = re.sub(r"#0d00\w\w", lambda m: f"var({_VARIABLES[m[0]]})", svg)
    view = re.search(r'viewBox="[^"]*"', svg)
    assert view is not None
    opening = f'<svg {view[0]} role="img" aria-label="{html.escape(description)}">'
    return opening + svg[svg.index(">") + 1 :].rstrip() + "\n"
