"""Step time by active slots, drawn: what stands in the table is what was counted, beside batches of as many."""

from __future__ import annotations

from dataclasses import replace

from specgate.contract import ActiveBin, CellResult, Point, Run
from specgate.reports.common.parts import Entry, Table
from specgate.reports.page.points import pictures
from specgate.reports.pictures.active_slots import batches_alone, by_active
from tests.support.factories import blocks_of, plan_of, run_of, scenario

DRAWS = True
BINS = {1: ((1, 30, 2.0),), 4: ((1, 3, 2.1), (2, 5, 2.5), (4, 40, 4.0))}
"""Batch → (active slots, steps, ms) of its spec cell."""


def texts(table: Table) -> list[list[str]]:
    return [[entry.text if isinstance(entry, Entry) else entry for entry in row] for row in table.rows]


def ragged(run: Run) -> Run:
    """`run` with the bins of `BINS` in its spec cells, and a baseline that decodes all its slots to the end."""

    def binned(result: CellResult) -> CellResult:
        batch = result.cell.point.batch
        spec = tuple(ActiveBin(*bin_) for bin_ in BINS[batch])
        return replace(result, by_active=spec if result.cell.role.speculative else (ActiveBin(batch, 50, 1.0),))

    return replace(run, cells=tuple(map(binned, run.cells)))


PLAN = plan_of(scenario(batch=(1, 4)))
RUN = ragged(run_of(PLAN, blocks_of(PLAN)))
ONE, FOUR = dict.fromkeys(r.cell.point for r in RUN.cells)


def of(point: Point) -> list[CellResult]:
    return [r for r in RUN.cells if r.cell.point == point]


def test_a_smaller_batch_stands_beside_the_steps_that_had_as_many_slots_left() -> None:
    alone = batches_alone(RUN, FOUR)
    assert alone == {("baseline", 1): 1.0, ("spec-3", 1): 2.0}
    rows = [row for row in texts(by_active("p0", of(FOUR), alone).tables[0]) if row[0] == "spec-3"]
    assert [row[1] for row in rows] == ["1", "2", "4"] and [row[5] for row in rows] == ["3", "5", "40"]
    assert [row[4] for row in rows] == ["1.050", "–", "–"]
    assert "Crosses" in by_active("p0", of(FOUR), alone).caption


def test_the_smallest_batch_has_none_beside_it_and_withheld_times_are_named() -> None:
    assert batches_alone(RUN, ONE) == {}
    withheld = [replace(r, by_active=(ActiveBin(1, 3, None), ActiveBin(2, 9, None))) for r in of(ONE)]
    picture = by_active("p0", withheld, {})
    assert "no smaller batches" in picture.caption
    assert all(row[2:5] == ["–", "–", "–"] for row in texts(picture.tables[0]))


def test_the_page_has_the_picture_where_slots_end_at_different_steps_and_there_alone() -> None:
    def names(point: Point) -> list[str]:
        return [p.name for p in pictures("p0", RUN, point)]

    assert "Step time by slots that still decode" in names(FOUR)
    assert "Step time by slots that still decode" not in names(ONE)
