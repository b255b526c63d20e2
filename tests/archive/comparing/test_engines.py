"""The bench matrix: the same cells side by side, and why some are not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specgate.archive.comparing.engines import matrix_of
from specgate.contract import Budget, Run, Sampling, Scenario
from specgate.contract.comparisons import Matrix
from specgate.contract.load import Load
from specgate.errors import UsageError
from specgate.planning.plan import build_plan
from specgate.reports.common.parts import Entry
from specgate.reports.views.engines import sheet, speedup, table
from tests.support.factories import blocks_of, run_of, scenario, with_acceptance
from tests.support.loaded import load_scenario, loaded_run


def run(backend: str, *scenarios: Scenario, name: str = "x-1") -> Run:
    plan = build_plan(scenarios or (scenario(),), backend)
    return run_of(plan, blocks_of(plan), id=name)


def why_not(matrix: Matrix) -> list[list[str | None]]:
    return [[e.why_not for e in row.entries] for row in matrix.rows]


def test_rows_are_what_was_asked_and_columns_the_back_ends() -> None:
    matrix = matrix_of([run("one"), run("two", scenario(spec=(2, 3)))])
    assert [c.label for c in matrix.columns] == ["one", "two"]
    assert [row.cell.key for row in matrix.rows] == [
        "demo-64//c64/b1/baseline",
        "demo-64//c64/b1/spec-3",
        "demo-64//c64/b1/spec-2",
    ]
    assert why_not(matrix) == [[None, None], [None, None], ["not in its plan", None]]


def test_rates_of_an_open_loop_are_rows_of_their_own() -> None:
    loaded = loaded_run(load_scenario((8,), rates=(20.0, 100.0), requests=6))
    matrix = matrix_of([loaded, loaded])
    keys = [[e.result.cell.key if e.result else "" for e in row.entries] for row in matrix.rows]
    assert keys == [[result.cell.key] * 2 for result in loaded.cells]
    rows = table(matrix, speedup, speculative=True).rows
    assert [row[:4] for row in rows] == [["sweep", "16", f"{rate}/s", "spec-3"] for rate in (20, 100)]


def test_two_runs_of_one_back_end_are_told_apart() -> None:
    assert [c.label for c in matrix_of([run("one", name="x-a1"), run("one", name="x-b2")]).columns] == [
        "one a1",
        "one b2",
    ]


def test_other_prompts_are_not_held_beside_the_first_ones() -> None:
    other = run("two")
    other = replace(other, prompts={k: {**about, "sha256": "d" * 64} for k, about in other.prompts.items()})
    assert why_not(matrix_of([run("one"), other]))[0] == [None, "other prompts: dddddddd, not cccccccc"]


def test_prompts_that_no_run_has_recorded_are_not_taken_for_the_same() -> None:
    unknown = [replace(run(name), prompts={}) for name in ("one", "two")]
    assert all(why for row in why_not(matrix_of(unknown)) for why in row)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"dtype": "bfloat16"}, "dtype"),
        ({"budget": Budget(steps=99)}, "budget"),
        ({"kind": "full"}, "kind"),
        ({"sampling": Sampling()}, "sampling"),
        ({"load": Load(6, arrivals="gamma")}, "load"),
    ],
)
def test_what_was_asked_otherwise_is_named(change: dict[str, object], named: str) -> None:
    first, other = run("one"), run("two")
    scenarios = {name: replace(s, **change) for name, s in other.scenarios.items()}  # type: ignore[arg-type]  # a field
    reasons = why_not(matrix_of([first, replace(other, scenarios=scenarios)]))
    assert reasons[0] == [None, f"asked otherwise: {named}"]


def test_levels_that_both_have_are_comparable_whatever_else_was_measured() -> None:
    first, other = (loaded_run(load_scenario((1, *more))) for more in ((2,), (4,)))
    assert why_not(matrix_of([first, other]))[0] == [None, None]


def test_figures_of_two_kinds_have_no_best() -> None:
    plan = build_plan((scenario(batch=(2,)),), "one")
    joint, alone = (run_of(plan, blocks_of(plan, cycle_ns=ns), id=f"x-{ns}") for ns in (10_000_000, 15_000_000))
    cells = [replace(c, values={n: v for n, v in c.values.items() if not n.startswith("joint")}) for c in alone.cells]
    marks = {
        entry.mark
        for section in sheet(matrix_of([joint, replace(alone, cells=tuple(cells))])).sections
        if section.title in ("Output tokens per second", "Milliseconds per token")
        for row in section.table.rows
        for entry in row[4:]
        if isinstance(entry, Entry)
    }
    assert marks == {None}


def test_a_cell_that_failed_says_so_and_the_next_column_is_the_reference() -> None:
    plan = build_plan((scenario(),), "one")
    failed = run_of(plan, [])
    reasons = why_not(matrix_of([failed, run("two")]))
    assert reasons[0] == ["no figures: no block was measured", None]


def test_sources_of_acceptance_are_kept_apart() -> None:
    matrix = matrix_of([run("one"), with_acceptance(run("two"), "forced")])
    assert [row.sources for row in matrix.rows] == [["real", "forced"]] * 2


def test_runs_without_a_cell_are_a_usage_error() -> None:
    with pytest.raises(UsageError, match="no run has a cell"):
        matrix_of([replace(run("one"), cells=())])
