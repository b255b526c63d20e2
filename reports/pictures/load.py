"""Pictures of a server under load: up to which level speculation pays, and throughput against latency."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from specgate.analysis.grouping import grouped
from specgate.analysis.intervals.rounding import told_from
from specgate.analysis.load.figures import bound, draft_length, in_words, unit_of
from specgate.contract import BASELINE, CellResult, Role, Run
from specgate.contract.load import BreakEven
from specgate.reports.common import figures
from specgate.reports.common.figures import NONE, number, ratio
from specgate.reports.common.parts import Picture, Table, left_out
from specgate.reports.pictures import svg

PAYS: Final = "Where speculation stops paying"
CURVE: Final = "Throughput against latency"
FIGURES: Final = (
    ("tok/s", "output_tok_s"),
    ("req/s", "throughput_req_s"),
    ("in flight", "in_flight_avg"),
    ("TTFT p50", "p50_ttft_ms"),
    ("TTFT p99", "p99_ttft_ms"),
    ("TPOT p50", "p50_tpot_ms"),
    ("TPOT p99", "p99_tpot_ms"),
    ("E2E p99", "p99_e2e_ms"),
    ("goodput", "goodput_share"),
    ("acceptance length", "acceptance_length"),
    ("refused", "refused_requests"),
    ("sent late p50", "p50_send_lag_ms"),
    ("p99", "p99_send_lag_ms"),
    ("max", "send_lag_ms"),
)
"""Column → metric, of every role at every level. Times are in ms."""


def of_load(run: Run) -> Iterator[Picture]:
    """Two pictures per scenario and context of a load run; none of any other run."""
    sweeps = grouped(run.break_even, lambda sweep: (sweep.scenario, sweep.context))
    for number_, ((scenario, context), of) in enumerate(sweeps.items()):
        where = f": {scenario}, {context:,} tokens" if len(sweeps) > 1 else ""
        picture = break_even(f"load{number_}", where, of)
        tables = [*picture.tables, *limit_tables(run, scenario, context), *draft_tables(run, scenario, context)]
        yield replace(picture, tables=tables)
        yield curve(f"load{number_}", where, run, scenario, context)


# ── where it pays ────────────────────────────────────────────────────────────────────────────────────────────────────


def break_even(key: str, where: str, sweeps: Sequence[BreakEven]) -> Picture:
    """The ratio at every level with its interval, and the interval of the break-even as a band. `sweeps`: one per draft
    length.
    """
    if not any(level.ratio for sweep in sweeps for level in sweep.levels):
        return left_out(PAYS + where, "no pair of blocks whose speed may be quoted")
    open_loop = sweeps[0].open_loop
    what = "E2E latency of the baseline over spec's" if open_loop else "times the baseline's throughput"
    caption = (
        "Dot: mean over pairs; line: 95 % interval; dashed: break-even; band: the interval of the level at which it "
    )
    caption += "lies. " + " ".join(f"{Role(sweep.k)}: {in_words(sweep)}." for sweep in sweeps)
    words = "; ".join(f"{Role(sweep.k)}: {in_words(sweep)}" for sweep in sweeps)
    drawing = svg.drawn(f"{key}-pays", f"{PAYS}{where}. {words}.", lambda axes: draw_ratios(axes, sweeps, what))
    return Picture(PAYS + where, caption, drawing, [ratio_table(sweeps)])


def draw_ratios(axes: Any, sweeps: Sequence[BreakEven], what: str) -> None:
    every = sorted({level.level for sweep in sweeps for level in sweep.levels})
    for sweep in sweeps:
        tint, known = svg.colour(Role(sweep.k)), [level for level in sweep.levels if level.ratio is not None]
        if sweep.outcome in ("crosses", "beyond", "below") and (sweep.low or sweep.high):
            axes.axvspan(sweep.low or every[0], sweep.high or every[-1], color=tint, alpha=0.14, linewidth=0, zorder=0)
        crossing = [(sweep.value, 1.0)] if sweep.value is not None else []
        path = sorted([*((k.level, k.ratio) for k in known), *crossing])
        axes.plot(*zip(*path, strict=True), color=tint, linewidth=1.2, alpha=0.7, zorder=2)
        for level in known:
            if level.ci_low is not None and level.ci_high is not None:
                axes.plot([level.level] * 2, [level.ci_low, level.ci_high], color=tint, linewidth=3, zorder=3)
        dots = [k.level for k in known], [k.ratio for k in known]
        axes.plot(*dots, "o", color=tint, mec=svg.SURFACE, markersize=7, zorder=4, label=str(Role(sweep.k)))
        if sweep.value is not None:
            axes.plot([sweep.value], [1], "D", color=svg.SURFACE, mec=tint, markersize=6, mew=1.6, zorder=5)
            place = {"textcoords": "offset points", "xytext": (0, 9), "ha": "center", "va": "bottom"}
            axes.annotate(f"{sweep.value:.3g}", (sweep.value, 1), **place)
    axes.axhline(1, color=svg.MUTED, linewidth=1, linestyle=(0, (3, 3)), zorder=1)
    axes.set(xlabel=f"{unit_of(sweeps[0].open_loop)} (log scale)", ylabel=what)
    axes.margins(y=0.12)
    svg.ratio_axis(axes, "y")
    level_axis(axes, every)
    svg.rows_of_grid(axes)
    svg.legend(axes, len(sweeps))


def level_axis(axes: Any, levels: Sequence[float]) -> None:
    """A logarithmic axis with a tick at every measured level, as far as there is room."""
    axes.set_xscale("log", base=2)
    step = -(-len(levels) // 12)
    axes.set_xticks(levels[::step], [f"{level:g}" for level in levels[::step]])
    axes.set_xticks([], minor=True)
    spread = (levels[-1] / levels[0]) ** 0.06 if len(levels) > 1 else 2.0
    axes.set_xlim(levels[0] / spread, levels[-1] * spread)


def ratio_table(sweeps: Sequence[BreakEven]) -> Table:
    rows = [
        [
            str(Role(sweep.k)),
            f"{level.level:g}",
            NONE if level.ratio is None else ratio(level.ratio),
            ends(level.ci_low, level.ci_high),
            str(level.pairs),
        ]
        for sweep in sweeps
        for level in sweep.levels
    ]
    rows += [
        [
            str(Role(s.k)),
            "break-even",
            bound(s.value, NONE),
            f"{bound(s.low, f'below {s.levels[0].level:g}')} … {bound(s.high, f'beyond {s.levels[-1].level:g}')}"
            if s.outcome not in ("everywhere", "nowhere")
            else "outside the sweep",
            NONE,
        ]
        for s in sweeps
    ]
    return Table(("role", unit_of(sweeps[0].open_loop), "ratio", "95 % interval", "pairs"), rows, texts=2)


def ends(low: float | None, high: float | None) -> str:
    """An interval whose ends are told from 1, by which it is judged."""
    return NONE if low is None or high is None else f"{told_from(1.0, low, 3)} … {told_from(1.0, high, 3)}"


def limit_tables(run: Run, scenario: str, context: int) -> Iterator[Table]:
    """Yield the use of the latency limits by every role, with the level up to which they hold."""
    roles = [most for most in run.max_goodput if (most.scenario, most.context) == (scenario, context)]
    if not roles:
        return
    rows = [
        [
            str(Role(most.k)),
            f"{level.level:g}",
            NONE if level.use is None else told_from(1.0, level.use, 3),
            ends(level.ci_low, level.ci_high),
            NONE if level.goodput_req_s is None else number(level.goodput_req_s),
        ]
        for most in roles
        for level in most.levels
    ]
    rows += [
        [
            str(Role(most.k)),
            "limits hold up to",
            bound(most.value, most.outcome),
            f"{bound(most.low, 'below the first')} … {bound(most.high, 'beyond the last')}",
            NONE,
        ]
        for most in roles
    ]
    head = ("role", unit_of(roles[0].open_loop), "use of the limits", "95 % interval", "goodput, req/s")
    yield Table(head, rows, texts=2)


def draft_tables(run: Run, scenario: str, context: int) -> Iterator[Table]:
    """Yield the best draft length at every level."""
    levels = [best for best in run.best_drafts if (best.scenario, best.context) == (scenario, context)]
    if levels:
        rows = [
            [
                f"{best.level:g}",
                draft_length(best.k),
                ", ".join(map(draft_length, best.as_good)) or NONE,
                f"{ratio(best.ratio)} {draft_length(best.next_k)}",
                ends(best.ci_low, best.ci_high),
            ]
            for best in levels
        ]
        head = (unit_of(levels[0].open_loop), "best draft length", "not told from it", "lead", "95 % interval")
        yield Table(head, rows, texts=3)


# ── throughput against latency ───────────────────────────────────────────────────────────────────────────────────────


def curve(key: str, where: str, run: Run, scenario: str, context: int) -> Picture:
    """Output tokens per second against the median end-to-end latency of a request: one line per role, one dot per
    level. Up and to the left is better.
    """
    mine = [r for r in run.cells if (r.cell.point.scenario, r.cell.point.context) == (scenario, context)]
    lines = {role: line_of(mine, role) for role in dict.fromkeys(r.cell.role for r in mine)}
    drawn = {role: dots for role, dots in lines.items() if dots}
    name = CURVE + where
    if not drawn:
        return left_out(name, "no level whose times may be quoted")
    open_loop = mine[0].cell.point.rate is not None

    def draw(axes: Any) -> None:
        for role, dots in drawn.items():
            axes.plot(
                [d[1] for d in dots],
                [d[2] for d in dots],
                "o-",
                color=svg.colour(role),
                mec=svg.SURFACE,
                label=role.name,
            )
        for level, x, y in drawn.get(BASELINE, next(iter(drawn.values()))):
            place = {"textcoords": "offset points", "xytext": (5, -3), "ha": "left", "va": "top"}
            axes.annotate(f"{level:g}", (x, y), **place)
        axes.set(xlabel="median E2E latency of a request", ylabel="output tok/s")
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.margins(x=0.08, y=0.1)
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:g} s" if x >= 1 or not x else f"{1e3 * x:g} ms")
        axes.yaxis.set_major_formatter(lambda y, _: f"{y / 1e3:g}k" if y >= 1e4 else f"{y:g}")
        svg.rows_of_grid(axes)
        svg.legend(axes, len(drawn))

    words = "; ".join(
        f"{role}: " + ", ".join(f"{level:g}: {number(y)} tok/s at {number(x)} s" for level, x, y in dots)
        for role, dots in drawn.items()
    )
    drawing = svg.drawn(f"{key}-curve", f"{name}. {words}.", draw)
    caption = f"One dot per level ({unit_of(open_loop)} at the baseline's dots). Up and to the left is better."
    return Picture(name, caption, drawing, [figure_table(mine, open_loop)])


def line_of(results: Sequence[CellResult], role: Role) -> list[tuple[float, float, float]]:
    """(level, median E2E latency in seconds, output tokens per second) of a role at every level that has both."""
    dots = []
    for result in sorted((r for r in results if r.cell.role == role), key=lambda r: r.cell.point.level):
        latency, speed = (result.values.get(name) for name in ("p50_e2e_ms", "output_tok_s"))
        if latency is not None and speed is not None and latency.value is not None and speed.value is not None:
            dots.append((result.cell.point.level, latency.value / 1e3, speed.value))
    return dots


def figure_table(results: Sequence[CellResult], open_loop: bool) -> Table:
    """The figures of every role at every level. Columns that no cell has are left out."""
    shown = [(head, metric) for head, metric in FIGURES if any(metric in r.values for r in results)]
    ordered = sorted(results, key=lambda r: (r.cell.point.level, r.cell.role))
    rows = [
        [f"{r.cell.point.level:g}", r.cell.role_name, *(figures.figure(r.values.get(metric)) for _, metric in shown)]
        for r in ordered
    ]
    return Table((unit_of(open_loop), "role", *(head for head, _ in shown)), rows, texts=2)
