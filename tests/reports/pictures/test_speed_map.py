"""The line at which speculation stops to pay."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from specgate.contract import Run
from specgate.reports.pictures.speedups import break_even, maps
from tests.support.factories import blocks_of, plan_of, run_of, scenario

DRAWS = True

places = st.dictionaries(st.tuples(st.integers(1, 4), st.integers(1, 4)), st.floats(0.5, 2.0), min_size=1, max_size=16)


@given(places)
def test_the_line_runs_between_every_two_neighbours_on_different_sides_and_nowhere_else(
    fields: dict[tuple[int, int], float],
) -> None:
    batches, contexts = list(range(1, 5)), list(range(1, 5))
    crossings = sum(
        (fields[b, c] < 1) != (fields[near] < 1)
        for b, c in fields
        for near in ((b + 1, c), (b, c + 1))
        if near in fields
    )
    edges = list(break_even(fields, batches, contexts))
    assert len(edges) == len(set(edges)) == crossings
    assert all(abs(x1 - x0) + abs(y1 - y0) == 1 for (x0, y0), (x1, y1) in edges)


def measured() -> Run:
    plan = plan_of(scenario(context=(64, 128), batch=(1, 2), spec=(2, 3)))
    return run_of(plan, blocks_of(plan))


def test_there_is_a_map_per_draft_length_with_every_point_in_it() -> None:
    two, three = maps(measured())
    assert (two.name, three.name) == (
        "Speed-up by batch and context: spec-2",
        "Speed-up by batch and context: spec-3",
    )
    (table,) = three.tables
    assert list(table.head) == ["batch", "64", "128"]
    assert [row[0] for row in table.rows] == ["1", "2"]
    assert all(str(entry).endswith("×") for row in table.rows for entry in row[1:])


def test_break_even_is_drawn_where_a_field_loses() -> None:
    run = measured()
    slow = [
        replace(c, speedup=replace(c.speedup, value=0.8)) if c.cell.point.batch == 2 else c for c in run.comparisons
    ]
    _, three = maps(replace(run, comparisons=tuple(slow)))
    assert "Thick line: break-even" in three.caption
    assert "No two neighbours" in next(iter(maps(run))).caption


def test_scenarios_that_share_a_field_show_the_least_and_the_greatest() -> None:
    plan = plan_of(scenario("one", context=(64, 128)), scenario("two", context=(64,)))
    run = run_of(plan, blocks_of(plan))
    values = {c.cell.point.scenario: 1.5 if c.cell.point.scenario == "one" else 0.9 for c in run.comparisons}
    made = [replace(c, speedup=replace(c.speedup, value=values[c.cell.point.scenario])) for c in run.comparisons]
    (shown,) = maps(replace(run, comparisons=tuple(made)))
    assert list(shown.tables[0].rows[0]) == ["1", "0.90× … 1.50×", "1.50×"]
    assert "the least, which decides the colour" in shown.caption and "Thick line" in shown.caption


def test_one_point_makes_no_map() -> None:
    plan = plan_of(scenario())
    (shown,) = maps(run_of(plan, blocks_of(plan)))
    assert shown.svg is None and "no two batches or contexts" in shown.caption
