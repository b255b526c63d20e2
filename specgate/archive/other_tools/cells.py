"""Results of other tools as the cells of a run, without blocks or tokens. Repetitions of one question are one cell."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from specgate.archive.other_tools.reading import Result
from specgate.archive.other_tools.speculation import Drafting
from specgate.contract import Cell, CellResult, PairRef, Point, Role, Run, Value
from specgate.contract.metrics import METRICS

ELSEWHERE: Final = "elsewhere"
"""The name that stands for the back end in the keys of these cells."""


def with_scenarios(*sides: Sequence[Result]) -> list[list[Result]]:
    """Return `sides` with a scenario for each result that names none: the settings that differ between them, such as
    `max_concurrency 8`, or else the tool.
    """
    every = [result for side in sides for result in side]
    names = dict.fromkeys(name for result in every for name in result.asked)
    differing = [name for name in names if len({result.asked.get(name) for result in every}) > 1]
    return [[replace(r, scenario=r.scenario or label(r, differing) or r.tool.name) for r in side] for side in sides]


def label(result: Result, names: Sequence[str]) -> str:
    """Return these settings of a result as text. A slash would end the name of a cell."""
    return ", ".join(f"{name} {result.asked[name]}" for name in names if name in result.asked).replace("/", "_")


def merged(results: Iterable[Result]) -> list[Result]:
    """Return the results with repetitions of one scenario, question and draft length put together."""
    groups: dict[object, list[Result]] = {}
    for result in results:
        question = tuple(sorted(result.asked.items()))
        groups.setdefault((result.scenario, question, result.k, result.speculates), []).append(result)
    return [together(group) for group in groups.values()]


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
