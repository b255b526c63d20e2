"""Picture of a cycle's time: bars as long as the parts, floors where they are known."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from specgate.contract import Run
from specgate.reports.common.parts import Entry, Table
from specgate.reports.pictures.cycle import budget, budgets_of, waterfall
from tests.support.budgets import budgeted

DRAWS = True


def texts(table: Table) -> list[list[str]]:
    return [[entry.text if isinstance(entry, Entry) else entry for entry in row] for row in table.rows]


def shown(run: Run) -> tuple[Table, ...]:
    budgets = budgets_of(run, run.cells)
    return (*budget("p0", run, budgets).tables, *waterfall("p0", run, budgets).tables)


def test_the_parts_of_every_role_stand_in_the_table_and_add_up() -> None:
    parts = texts(shown(budgeted())[0])
    for role in ("baseline", "spec-3"):
        ms = {row[1]: float(row[2]) for row in parts if row[0] == role}
        whole = ms.pop("cycle")
        assert set(ms) == {"draft", "verify", "accept", "commit", "gap"}
        assert sum(ms.values()) == pytest.approx(whole, rel=0.01)


def test_the_factors_multiply_to_the_speed_up() -> None:
    run = budgeted()
    rows = texts(shown(run)[2])
    factors = [float(row[1].removesuffix("×")) for row in rows if row[0] not in ("speed-up",) and "most" not in row[0]]
    (speedup,) = (float(row[1].removesuffix("×")) for row in rows if row[0] == "speed-up")
    assert math.prod(factors) == pytest.approx(speedup, rel=0.02)
    assert speedup == pytest.approx(run.comparisons[0].speedup.value or 0, abs=0.005)


def test_a_gate_stands_with_the_acceptance_length_that_it_takes() -> None:
    ((role, rule, asks, takes),) = texts(shown(budgeted(floor=2.5))[3])
    assert (role, rule, asks) == ("spec-3", "fast", "2.5×")
    assert re.match(r"AL would have to be \d\.\d\d", takes)


def test_floors_and_the_highest_speed_up_are_drawn_where_they_are_known() -> None:
    run, blind = budgeted(), budgeted(bandwidth=None)
    assert "Line below a bar" in budget("p0", run, budgets_of(run, run.cells)).caption
    assert "black: what this cycle would give" in waterfall("p0", run, budgets_of(run, run.cells)).caption
    without = budget("p0", blind, budgets_of(blind, blind.cells))
    assert "No floor is drawn: no bandwidth measured here" in without.caption
    assert "black" not in waterfall("p0", blind, budgets_of(blind, blind.cells)).caption


def test_an_engine_that_does_not_split_its_steps_has_a_waterfall_and_no_parts() -> None:
    run = budgeted(lambda b: replace(b, phase_ns={}))
    budgets = budgets_of(run, run.cells)
    assert budget("p0", run, budgets).caption == "Left out: the engine does not split its steps."
    assert any(row[0] == "cost" for row in texts(waterfall("p0", run, budgets).tables[0]))


def test_without_budgets_both_say_why() -> None:
    run = replace(budgeted(), budgets={})
    assert budget("p0", run, ()).caption == "Left out: no times may be quoted."
    assert waterfall("p0", run, ()).caption == "Left out: no speed-up may be quoted."
