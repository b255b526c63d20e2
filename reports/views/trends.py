"""Figures over the runs of a history, with their chart.

Runs of a group (`Series.group`) have the same machine, weights, prompts and settings, so figures are comparable. A
group of one run has no trend; its figures stand in one table with the others of that kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from specgate.analysis.cell_names import cell_name
from specgate.analysis.grouping import grouped
from specgate.analysis.rows import Row, place, source
from specgate.contract import Point, Run, Value
from specgate.contract.comparisons import Series, Trends
from specgate.contract.metrics import metric
from specgate.reports.common import figures
from specgate.reports.common.figures import counted, figure
from specgate.reports.common.parts import Entry, Picture, Table
from specgate.reports.common.summary import headline
from specgate.reports.pictures import svg
from specgate.reports.sheets.formats import SheetView, Tables
from specgate.reports.sheets.sheet import Section, Sheet
from specgate.reports.views.builds import percent, shown

WIDTH, HEIGHT = 4.2, 2.5
"""Inches. Three of them stand beside each other on a page, and their letters stay readable."""
MARKERS: Final = "osD^vPX*<"
"""Per role, by its draft length, so that a line is told from the others without its colour."""
NAMED: Final = 8
"""Most runs that are numbered on the axis."""
LEAST: Final = 0.02
"""The least height of the vertical axis, relative to the values: noise must not look like a landscape."""


def trend(key: str, title: str, group: Sequence[Series], places: Sequence[int]) -> str:
    """The SVG of the values of `group` with intervals. `key`: what its ids begin with.

    `places`: indices of the runs that the axis has, in order. They stand at equal distances, numbered from 1.
    """
    at = {place: x for x, place in enumerate(places)}

    def draw(axes: Any) -> None:
        svg.rows_of_grid(axes)
        for series in group:
            draw_series(axes, series, [at[r.run] for r in series.readings])
        step = -(-len(places) // NAMED)
        named = [*range(len(places) - 1, -1, -step)][::-1]
        axes.set_xticks(named, [str(places[x] + 1) for x in named])
        axes.set(xlabel="run", xlim=(-0.5, len(places) - 0.5), ylim=limits(group))
        svg.few_ticks(axes.yaxis)
        axes.ticklabel_format(axis="y", useOffset=False, style="plain")
        svg.legend(axes, len(group))

    words = "; ".join(described(s) for s in group)
    return svg.fitted(key, f"{title}. {words}.", draw, WIDTH, HEIGHT)


def draw_series(axes: Any, series: Series, xs: Sequence[int]) -> None:
    tint, marker = svg.colour(series.cell.role), MARKERS[series.cell.role.k % len(MARKERS)]
    for x, r in zip(xs, series.readings, strict=True):
        if r.ci_low is not None and r.ci_high is not None:
            axes.plot([x, x], [r.ci_low, r.ci_high], color=tint, linewidth=3, alpha=0.35)
    axes.plot(xs, [r.value for r in series.readings], f"{marker}-", color=tint, label=series.cell.role_name)


def limits(group: Sequence[Series]) -> tuple[float, float]:
    """The vertical range: all values and intervals, and at least LEAST of the largest value."""
    ends = [x for s in group for r in s.readings for x in (r.value, r.ci_low, r.ci_high) if x is not None]
    low, high = min(ends), max(ends)
    room = max((high - low) * 0.12, (abs(high) * LEAST - (high - low)) / 2, 1e-9)
    return low - room, high + room


def described(series: Series) -> str:
    values = ", ".join(figure(Value(series.metric, r.value)) for r in series.readings)
    return f"{series.cell.role_name}: {values}"


NAMES: Final[Mapping[str, str]] = {
    "speedup_vs_ar_ratio": "speed-up",
    "decode_speedup_ratio": "speed-up of decoding",
    "joint_decode_speedup_ratio": "speed-up of joint decoding",
    "acceptance_length": "acceptance length",
    "output_tok_s": "tokens per second",
    "decode_tok_s": "tokens per second of decoding",
    "joint_decode_tok_s": "tokens per second of joint decoding",
    "p50_ttft_ms": "time to first token",
}
"""Metric → its name above a picture. Others go by their own."""
Plot = tuple[Point, str]
"""Point and group of runs: the subject of one row of pictures."""


def sheet(trends: Trends) -> Sheet:
    """The page: the pictures group by group, single runs, then runs and groups."""
    plots: dict[Plot, list[Series]] = grouped(trends.series, lambda series: (series.cell.point, series.group))
    followed = {plot: group for plot, group in plots.items() if any(len(s.readings) > 1 for s in group)}
    single = [s for plot, group in plots.items() if plot not in followed for s in group]
    return Sheet(
        title="History",
        subtitle=f"{counted(len(trends.runs), 'run')} in {counted(len(trends.groups), 'group')}; no gate",
        ending=None,
        banners=[f"Left out: {why}" for why in trends.unread],
        sections=[
            *(section(trends, n, *plot, group) for n, (plot, group) in enumerate(followed.items())),
            *once(trends, single),
            Section("Runs", runs(trends), None if trends.runs else "No run could be read."),
            Section(
                "Groups", groups(trends), "Runs of a group share machine, weights, prompts and settings.", folded=True
            ),
        ],
    )


# ── groups ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def runs(trends: Trends) -> Table:
    rows = [
        [
            str(n),
            run.started.replace("T", " ").replace("+00:00", ""),
            run.kind,
            headline(run).state,
            str(run.fingerprint.get("source_tree_sha256"))[:8],
            run.id,
        ]
        for n, run in enumerate(trends.runs, 1)
    ]
    return Table(("no.", "started (UTC)", "kind", "verdict", "source", "run"), rows, texts=6)


def section(trends: Trends, number: int, point: Point, label: str, group: Sequence[Series]) -> Section:
    """Return the section of one group: a picture per metric, all with one axis of runs, and a row per metric."""
    facts = trends.groups.get(label, {})
    places = sorted({r.run for s in group for r in s.readings})
    by_metric = grouped(group, lambda series: series.metric)
    where = " · ".join(filter(None, (point.backend, facts.get("device"), facts.get("dtype"), f"group {label}")))
    pictures = [
        Picture(
            name=in_units(name),
            caption=f"{metric(name).direction} is better",
            svg=trend(f"t{number}-{n}", f"{named(name)}: {cell_name(point.key)}", of, places),
            tables=[readings(trends, name, of, places)],
        )
        for n, (name, of) in enumerate(by_metric.items())
    ]
    head = ("figure", "role", "runs", "first", "last", "last over first")
    rows = [summary_row(s) for of in by_metric.values() for s in of]
    return Section(f"{cell_name(point.key)} · {where}", Table(head, rows, texts=2), pictures=pictures)


def named(name: str) -> str:
    return NAMES.get(name, name)


def in_units(name: str) -> str:
    """The name of a metric with its unit, which a ratio shows in its figures."""
    unit = metric(name).unit
    return named(name) if unit == "ratio" else f"{named(name)} ({unit})"


def summary_row(series: Series) -> list[str | Entry]:
    first, last = series.readings[0].value, series.readings[-1].value
    return [
        named(series.metric),
        series.cell.role_name,
        str(len(series.readings)),
        shown(series.metric, first),
        shown(series.metric, last),
        percent(last / first) if first else figures.NONE,
    ]


def readings(trends: Trends, name: str, group: Sequence[Series], places: Sequence[int]) -> Table:
    """A row per run, a column per role."""
    by_role = [{r.run: r for r in s.readings} for s in group]
    rows: list[list[str | Entry]] = [
        [
            str(place + 1),
            trends.runs[place].started[:16].replace("T", " "),
            str(trends.runs[place].fingerprint.get("source_tree_sha256"))[:8],
            *(shown(name, of[place].value if place in of else None) for of in by_role),
        ]
        for place in places
    ]
    return Table(("run", "started (UTC)", "source", *(s.cell.role_name for s in group)), rows, texts=3)


def once(trends: Trends, single: Sequence[Series]) -> Iterator[Section]:
    """Yield the figures of groups with a single run: a row per cell, a column per metric."""
    rows: dict[tuple[str, int], dict[str, str]] = {}
    for series in single:
        (reading,) = series.readings
        rows.setdefault((cell_name(series.cell.key), reading.run), {})[series.metric] = shown(
            series.metric, reading.value
        )
    if rows:
        metrics = list(dict.fromkeys(s.metric for s in single))
        head = ("cell", "run", *map(named, metrics))
        table = [[cell, str(run + 1), *(of.get(m, figures.NONE) for m in metrics)] for (cell, run), of in rows.items()]
        yield Section("Measured once", Table(head, table), "A group of one run has no trend to draw.", folded=True)


def groups(trends: Trends) -> Table:
    rows = [[name, key, value[:24]] for name, facts in trends.groups.items() for key, value in facts.items()]
    return Table(("group", "what", "value"), rows, texts=3)


def rows(trends: Trends) -> Iterator[Row]:
    """The rows of history.csv: one per run and figure."""
    for series in trends.series:
        kind = metric(series.metric)
        for reading in series.readings:
            run = trends.runs[reading.run]
            yield {
                **about(run),
                "ground": series.group,
                **place(series.cell),
                "metric": kind.name,
                "unit": kind.unit,
                "direction": kind.direction,
                "value": reading.value,
                "ci_low": reading.ci_low,
                "ci_high": reading.ci_high,
                "acceptance_source": source(run, series.cell),
            }


def about(run: Run) -> Row:
    return {
        "run_id": run.id,
        "started": run.started,
        "kind": run.kind,
        "verdict": headline(run).state,
        "status": run.status,
        "source_tree_sha256": run.fingerprint.get("source_tree_sha256"),
    }


def tables(trends: Trends) -> Tables:
    """Return every figure, then the runs and the groups."""
    by_group = ({"ground": name, **facts} for name, facts in trends.groups.items())
    return {"figures": rows(trends), "runs": map(about, trends.runs), "grounds": by_group}


VIEW = SheetView("history", sheet, tables)
