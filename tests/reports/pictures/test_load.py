"""Pictures of a server under load: where speculation stops paying, and throughput against latency."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specgate.contract import Run
from specgate.reports.pictures.load import of_load
from tests.support.factories import blocks_of, plan_of, run_of
from tests.support.loaded import SCRIPT, load_scenario, loaded_run

DRAWS = True


@pytest.fixture(scope="module")
def run() -> Run:
    return loaded_run()


def test_the_picture_marks_the_break_even_and_its_interval(run: Run) -> None:
    pays, curve = of_load(run)
    (break_even,) = run.break_even
    assert break_even.value is not None and break_even.low is not None
    assert pays.svg is not None and f">{break_even.value:.3g}</text>" in pays.svg and "var(--role-3)" in pays.svg
    assert f"speculation pays up to {break_even.value:.3g} clients" in pays.caption
    (table,) = pays.tables
    assert [row[1] for row in table.rows] == ["1", "2", "4", "8", "16", "break-even"]
    assert str(table.rows[-1][3]).startswith(f"{break_even.low:.3g} … ")
    assert curve.svg is not None and "baseline" in curve.svg and "spec-3" in curve.svg


def test_the_table_of_the_curve_has_every_role_at_every_level(run: Run) -> None:
    _, curve = of_load(run)
    (table,) = curve.tables
    places = [(level, role) for level in ("1", "2", "4", "8", "16") for role in ("baseline", "spec-3")]
    assert [(row[0], row[1]) for row in table.rows] == places
    assert {"tok/s", "TTFT p99", "TPOT p50", "refused", "acceptance length"} <= set(table.head)


def test_levels_without_a_speed_are_left_out_with_a_reason() -> None:
    wrong = loaded_run(load_scenario((1, 2), rounds=2), replace(SCRIPT, wrong_token_at=5))
    pays, curve = of_load(wrong)
    assert pays.svg is None and "no pair of blocks" in pays.caption
    assert curve.svg is not None and "spec-3" not in curve.svg.split("aria-label")[0], "the baseline's times hold"


def test_an_open_loop_has_its_rates_on_the_axis() -> None:
    pays, _ = of_load(loaded_run(load_scenario((8,), rates=(20.0, 100.0), requests=4)))
    assert pays.svg is not None and "requests/s (log scale)" in pays.svg and "E2E latency" in pays.svg


def test_other_runs_have_no_such_picture() -> None:
    plan = plan_of()
    assert list(of_load(run_of(plan, blocks_of(plan)))) == []
