"""The export `otava`: trends as input of Apache Otava, which looks for change points.

It writes otava.yaml and a CSV file per cell and group. Otava needs a number in every field, so a metric becomes a
column only if every run of the file has it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from specgate.analysis.rows import Row
from specgate.contract import Cell
from specgate.contract.comparisons import Series, Trends
from specgate.contract.metrics import metric
from specgate.reports.texts.csv import table

ATTRIBUTES = ("run", "source", "verdict")
_UNSAFE = re.compile(r"[^A-Za-z0-9.-]+")


class Otava:
    """An `protocols.Export`."""

    name = "otava"

    def files(self, trends: Trends) -> Mapping[str, str]:
        import yaml

        tests: dict[str, object] = {}
        files: dict[str, str] = {}
        ordered = sorted(trends.series, key=one_test_order)
        for n, (_, group) in enumerate(groupby(ordered, key=one_test), 1):
            series = list(group)
            whole, places = complete(series)
            name = f"{n:03d}-{_UNSAFE.sub('-', '-'.join((series[0].cell.key, series[0].group))).strip('-')}"
            files[f"{name}.csv"] = table(rows(trends, whole, places), ("time", *ATTRIBUTES, *(s.metric for s in whole)))
            tests[name] = {
                "type": "csv",
                "file": f"{name}.csv",
                "time_column": "time",
                "attributes": list(ATTRIBUTES),
                "metrics": {s.metric: {"direction": direction(s.metric), "scale": 1} for s in whole},
                "csv_options": {"delimiter": ",", "quote_char": '"'},
            }
        return {"otava.yaml": yaml.safe_dump({"tests": tests}, sort_keys=False), **files}


def one_test(series: Series) -> tuple[Cell, str]:
    """Series with the same key go into one file."""
    return series.cell, series.group


def one_test_order(series: Series) -> tuple[str, str]:
    return series.cell.key, series.group


def complete(series: Sequence[Series]) -> tuple[list[Series], list[int]]:
    """The series that have a reading of every run that any of the series has, and the numbers of these runs."""
    places = sorted({r.run for s in series for r in s.readings})
    return [s for s in series if len(s.readings) == len(places)], places


def rows(trends: Trends, series: Sequence[Series], places: Sequence[int]) -> Iterator[Row]:
    from specgate.reports.common.summary import headline

    for n, place in enumerate(places):
        run = trends.runs[place]
        yield {
            "time": run.started,
            "run": run.id,
            "source": (run.fingerprint.get("source_tree_sha256") or "unknown")[:8],
            "verdict": headline(run).state,
            **{s.metric: s.readings[n].value for s in series},
        }


def direction(name: str) -> int:
    """1 if an increase of the metric is an improvement, -1 if a decrease is."""
    return -1 if metric(name).direction == "lower" else 1


EXPORT = Otava()
