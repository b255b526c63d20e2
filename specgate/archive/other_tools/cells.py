"""Results of other tools as the cells of a run, without blocks or tokens. Repetitions of one question are one cell."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from specgate.analysis.grouping import grouped
from specgate.archive.other_tools.reading import Result
from specgate.archive.other_tools.speculation import Drafting
from specgate.contract import Cell, CellResult, PairRef, Point, Role, Run, Value
from specgate.contract.metrics import METRICS

ALIKE: Final = 1.1
"""Mean lengths of requests that are less than so many times apart are those of one question."""
ELSEWHERE: Final = "elsewhere"
"""The name that stands for the back end in the keys of these cells."""


def with_scenarios(*sides: Sequence[Result]) -> list[list[Result]]:
    """Return `sides` with a scenario for each result that names none: what was asked otherwise of some of them, and
    the settings that differ within a side, such as `max_concurrency 8`; or else the tool.
    """
    sides = tuple(map(with_lengths, sides))
    questions = differing([result.asked for side in sides for result in side])
    settings = dict.fromkeys(name for side in sides for name in differing([result.settings for result in side]))
    names = [*questions, *settings]
    return [[replace(r, scenario=r.scenario or label(r, names) or r.tool.name) for r in side] for side in sides]


def with_lengths(side: Sequence[Result]) -> list[Result]:
    """Return the results with their lengths as settings. Repetitions with other seeds differ a little."""
    for name in dict.fromkeys(name for result in side for name in result.sizes):
        lengths = sorted({result.sizes[name] for result in side if name in result.sizes})
        text, first = dict[float, str](), lengths[0]
        for length in lengths:
            first = first if length < ALIKE * first else length
            text[length] = f"{first:.0f}"
        side = [
            replace(r, settings={**r.settings, f"{name} length": text[r.sizes[name]]}) if name in r.sizes else r
            for r in side
        ]
    return list(side)


def differing(stated: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the names whose values are not the same in all of `stated`."""
    names = dict.fromkeys(name for one in stated for name in one)
    return [name for name in names if len({one.get(name) for one in stated}) > 1]


def label(result: Result, names: Sequence[str]) -> str:
    """Return these settings of a result as text. A slash would end the name of a cell."""
    stated = {**result.asked, **result.settings}
    return ", ".join(f"{name} {stated[name]}" for name in names if name in stated).replace("/", "_")


def merged(results: Iterable[Result]) -> list[Result]:
    """Return the results with repetitions of one scenario, question and draft length put together."""

    def question(result: Result) -> object:
        settings = tuple(sorted({**result.asked, **result.settings}.items()))
        return result.scenario, settings, result.k, result.speculates

    return [together(group) for group in grouped(with_lengths(list(results)), question).values()]


def together(group: Sequence[Result]) -> Result:
    """Return repetitions as one result. Its acceptance length is that of all their counts.

    A result that is there twice counts once: two measurements never agree in every figure.
    """
    group = list({tuple((m, *each) for m, each in result.figures.items()): result for result in group}.values())
    first, counted = group[0], [result.drafting for result in group if result.drafting]
    drafting = Drafting(*(math.fsum(getattr(d, part) for d in counted) for part in ("steps", "drafted", "accepted")))
    lengths = [result.length for result in group if result.length is not None]
    mean = statistics.fmean(lengths) if lengths else None
    return replace(
        first,
        figures={
            metric: [value for result in group for value in result.figures.get(metric, ())]
            for metric in dict.fromkeys(metric for result in group for metric in result.figures)
        },
        drafting=drafting if counted else None,
        length=drafting.length if counted else mean,
        failed=sum(result.failed for result in group),
    )


def run_of(name: str, results: Sequence[Result]) -> Run:
    """Return a run with a cell per result, without intervals."""
    tools = ", ".join(dict.fromkeys(result.tool.name for result in results))
    failed = sum(result.failed for result in results)
    return Run(
        id=name,
        kind="micro" if all(result.micro for result in results) else "full",
        status="complete",
        started="",
        ended=None,
        argv=(),
        tool_version="",
        fingerprint={},
        environment={"tool": tools, **({"failed requests": failed} if failed else {})},
        scenarios={},
        pair=PairRef(ELSEWHERE, Path(), None),
        engines={},
        prompts={},
        cells=tuple(map(cell_of, results)),
        comparisons=(),
        failures={},
    )


def cell_of(result: Result) -> CellResult:
    """Return the cell of one result."""
    cell = Cell(Point(result.scenario or result.tool.name, ELSEWHERE, 0, 0), Role(result.k or 0))
    return CellResult(cell, "ok", None, 0, None, {value.metric: value for value in values_of(result)}, ())


def values_of(result: Result) -> Iterator[Value]:
    """Yield the figures: means over repetitions."""
    for metric, each in result.figures.items():
        timed = METRICS[metric].unit in ("ms", "tok/s", "req/s")
        why = "unpaired_in_time" if timed else "no_interval"
        yield Value(metric, statistics.fmean(each), "mean", len(each), reason_code=why)
    if result.drafting or result.length is not None:
        yield Value("acceptance_length", result.length, "tok_weighted", reason_code="no_interval")
