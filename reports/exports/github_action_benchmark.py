"""The export `github-action-benchmark`: the last run of every series, in the custom JSON of the action of that name.

The action takes one file per direction: one for `customBiggerIsBetter`, one for `customSmallerIsBetter`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from specgate.analysis.cell_names import cell_name
from specgate.contract.comparisons import Series, Trends
from specgate.contract.metrics import Direction, metric

FILES: Mapping[Direction, str] = {"higher": "bigger-is-better.json", "lower": "smaller-is-better.json"}


class GithubActionBenchmark:
    """An `protocols.Export`: per direction, a file with a list of {name, unit, value, range, extra}, which may be
    empty.
    """

    name = "github-action-benchmark"

    def files(self, trends: Trends) -> Mapping[str, str]:
        return {
            file: json.dumps([*entries(trends, direction)], indent=1, ensure_ascii=False, allow_nan=False) + "\n"
            for direction, file in FILES.items()
        }


def entries(trends: Trends, direction: Direction) -> Iterator[dict[str, object]]:
    for series in trends.series:
        kind, last = metric(series.metric), series.readings[-1]
        if kind.direction == direction:
            half = None if last.ci_low is None or last.ci_high is None else (last.ci_high - last.ci_low) / 2
            run = trends.runs[last.run]
            yield {
                "name": name(series),
                "unit": kind.unit,
                "value": last.value,
                **({"range": f"± {half:.4g}"} if half is not None else {}),
                "extra": f"run: {run.id}\nground: {series.group}\nacceptance: {run.acceptance}",
            }


def name(series: Series) -> str:
    """The name of an entry. The action joins entries of the same name into one chart, so it includes the group."""
    return f"{cell_name(series.cell.key)} {series.metric} ({series.cell.point.backend}, {series.group})"


EXPORT = GithubActionBenchmark()
