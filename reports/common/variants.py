"""Variants of a role beside the plain role: what varies, and what that does to speed and acceptance.

Every variant is decoded in an engine process of its own. So a ratio between two variants is one of two medians, without
pairs and without an interval, and no gate judges it: processes alone differ by a percent or so. What a gate judges is
the speed-up of each over its own baseline.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from specgate.analysis.cell_names import cell_name
from specgate.analysis.variation import variation
from specgate.contract import CellResult, Run
from specgate.reports.common import figures
from specgate.reports.common.parts import Table

HEAD: Final = ("role", "what varies", "against", "tok/s", "as fast as that", "acceptance length", "there")
BESIDE: Final = (
    "A variant runs in an engine process of its own, with its own baseline: a ratio between variants is one of "
    "medians, without an interval, and judged by no gate."
)


def table(run: Run) -> Table:
    """One row per cell of a variant, beside the cell of the plain role; no rows in a run without variants."""
    return Table(HEAD, list(rows(run)), texts=3)


def rows(run: Run) -> Iterator[list[str]]:
    for result, plain in beside(run):
        yield [
            cell_name(result.cell.key, run.scenarios),
            variation(run, result.cell),
            plain.cell.role_name,
            figures.of(result, *figures.SPEED),
            times_as_fast(result, plain),
            figures.of(result, "acceptance_length"),
            figures.of(plain, "acceptance_length"),
        ]


def beside(run: Run) -> Iterator[tuple[CellResult, CellResult]]:
    """(the cell of a variant, that of the plain role), for those that both have figures."""
    for result in run.cells:
        cell = result.cell
        if cell.point.variant:
            plain = run.result(replace(cell, point=replace(cell.point, scenario=cell.point.unvaried)).key)
            if plain is not None and "failed" not in (result.status, plain.status):
                yield result, plain


def times_as_fast(result: CellResult, plain: CellResult) -> str:
    """The ratio of tokens per second; a dash where one of them may not be quoted."""
    mine, other = (figures.first(r, *figures.SPEED) for r in (result, plain))
    if mine is None or other is None or mine.value is None or not other.value:
        return figures.NONE
    return figures.ratio(mine.value / other.value)


def sentences(run: Run) -> Iterator[str]:
    """One sentence per cell of a variant, and then what such a ratio is worth."""
    lines = list(rows(run))
    for name, varies, against, speed, ratio, length, there in lines:
        drafted = "" if length == figures.NONE else f", acceptance length {length} ({there})"
        yield f"{name} ({varies}) against {against}: {ratio} as fast at {speed} tok/s{drafted}"
    if lines:
        yield BESIDE
