"""The view `history`, for `specgate history`: the runs, and one picture per metric, point and ground.

A ground is what must stay the same for figures to be comparable: machine, weights, prompts and settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from specgate.core import Run
from specgate.core.metrics import metric
from specgate.core.trends import Series, Trends
from specgate.reports.common.parts import Entry, Table
from specgate.reports.common.summary import headline
from specgate.reports.sheets.sheet import Section, Sheet
from specgate.reports.sheets.view import SheetView
from specgate.reports.texts.csv import Row
from specgate.reports.views.contrast import shown
from specgate.reports.views.trend_chart import trend

COLUMNS = (
    *("run_id", "started", "kind", "verdict", "status", "source_tree_sha256", "ground"),
    *("scenario", "backend", "role", "context_len", "batch", "k"),
    *("metric", "unit", "direction", "value", "ci_low", "ci_high", "acceptance_source"),
)


def sheet(trends: Trends) -> Sheet:
    """The page: the runs, then the trends, then what the grounds are."""
    return Sheet(
        title="History",
        subtitle=f"{counted(len(trends.runs), 'run')} on {counted(len(trends.grounds), 'ground')}; no gate",
        ending=None,
        banners=[f"Left out: {why}" for why in trends.unread],
        sections=[
            Section("Runs", runs(trends), None if trends.runs else "No run could be read."),
            *(section(trends, n, list(found)) for n, (_, found) in enumerate(groupby(trends.series, key=one_picture))),
            Section("Grounds", grounds(trends), "What must stay the same for figures to be of one kind."),
        ],
    )


def counted(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


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


def one_picture(series: Series) -> tuple[object, ...]:
    """Series with the same key share a picture."""
    return series.cell.point, series.ground, series.metric


def section(trends: Trends, number: int, found: Sequence[Series]) -> Section:
    first = found[0]
    point = first.cell.point
    places = sorted({r.run for s in found for r in s.readings})
    by_role = [{r.run: r for r in s.readings} for s in found]
    rows: list[list[str | Entry]] = [
        [
            str(place + 1),
            trends.runs[place].started[:16].replace("T", " "),
            *(shown(first.metric, readings[place].value if place in readings else None) for readings in by_role),
        ]
        for place in places
    ]
    head = ("run", "started (UTC)", *(s.cell.role.name for s in found))
    # A picture with one line has no legend, so its title names the role.
    role = f" {first.cell.role}" if len(found) == 1 else ""
    where = f"{point.scenario} c{point.context} b{point.batch}{role}, {point.backend}, ground {first.ground}"
    title = f"{first.metric} ({metric(first.metric).unit}): {where}"
    return Section(title, Table(head, rows, texts=2), svg=trend(f"t{number}", title, found))


def grounds(trends: Trends) -> Table:
    rows = [[name, key, value[:24]] for name, facts in trends.grounds.items() for key, value in facts.items()]
    return Table(("ground", "what", "value"), rows, texts=3)


def rows(trends: Trends) -> Iterator[Row]:
    """The rows of history.csv: one per run and figure."""
    for series in trends.series:
        point, kind = series.cell.point, metric(series.metric)
        for reading in series.readings:
            run = trends.runs[reading.run]
            yield {
                **about(run),
                "ground": series.ground,
                "scenario": point.scenario,
                "backend": point.backend,
                "role": series.cell.role.name,
                "context_len": point.context,
                "batch": point.batch,
                "k": series.cell.role.k,
                "metric": kind.name,
                "unit": kind.unit,
                "direction": kind.direction,
                "value": reading.value,
                "ci_low": reading.ci_low,
                "ci_high": reading.ci_high,
                "acceptance_source": run.acceptance if series.cell.role.speculative else None,
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


VIEW = SheetView("history", sheet, rows, COLUMNS)
