"""Experts touched, drawn: what stands in the tables is what was counted, and what was not counted is said."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specgate.contract import Block, Run
from specgate.contract.traffic import ExpertTraffic
from specgate.reports.common.parts import Entry, Table
from specgate.reports.pictures.cycle import budgets_of
from specgate.reports.pictures.experts import Uses, by_layer, by_position, uses_of
from tests.support.budgets import budgeted, split
from tests.support.experts import EXPERTS, ROUTED, with_counts

DRAWS = True


def texts(table: Table) -> list[list[str]]:
    return [[entry.text if isinstance(entry, Entry) else entry for entry in row] for row in table.rows]


def run_with(overlap: float = 0.5, *, by_row: bool = True, batch: int = 1, experts: ExpertTraffic = EXPERTS) -> Run:
    def counted(made: Block) -> Block:
        return with_counts(split(made), overlap=overlap, by_row=by_row, experts=experts)

    return budgeted(counted, traffic=replace(ROUTED, target=replace(ROUTED.target, experts=experts)), batch=batch)


def uses(run: Run) -> Uses:
    return uses_of(budgets_of(run, run.cells))


def test_every_position_stands_with_its_experts_and_its_overlap() -> None:
    (_, baseline), (_, spec) = experts = uses(run_with(batch=2))
    rows = texts(by_position("p0", experts).tables[0])
    assert [row[:2] for row in rows] == [["spec-3", str(n)] for n in (1, 2, 3, 4)]  # the baseline has no neighbours
    assert [float(row[2]) for row in rows] == pytest.approx([of.touched for of in spec.by_row], abs=0.005)
    assert [float(row[3]) for row in rows] == pytest.approx([EXPERTS.distinct(n) for n in (1, 2, 3, 4)], abs=0.005)
    assert [row[4] for row in rows] == ["–", *(f"{of.overlap:.2f}" for of in spec.by_row[1:])]
    passes = texts(by_position("p0", experts).tables[1])
    assert [row[:3] for row in passes] == [["baseline", "2", "96"], ["spec-3", "8", "96"]]
    assert float(passes[0][3]) == pytest.approx(baseline.touched, abs=0.005)


def test_every_layer_stands_with_its_mean() -> None:
    experts = uses(run_with())
    rows = texts(by_layer("p0", experts).tables[0])
    assert [row[0] for row in rows] == ["0", "1", "2", "3", "all"]
    assert {row[1] for row in rows} == {"4.00"}  # of one token
    assert [float(row[2]) for row in rows[:4]] == pytest.approx(experts[1][1].by_layer, abs=0.005)


def test_a_picture_has_its_figures_in_words() -> None:
    experts = uses(run_with(1.0))
    svg = by_position("p0", experts).svg or ""
    assert (
        'role="img" aria-label="Experts touched and overlap by position. spec-3: experts touched by 1 token 4.00' in svg
    )
    assert "overlap of 2 tokens 1.00, 3 tokens 1.00, 4 tokens 1.00" in svg
    assert "baseline: 4.00 to 4.00 of 32; spec-3: 4.00 to 4.00 of 32" in (by_layer("p0", experts).svg or "")


def test_what_was_not_counted_is_left_out_with_its_reason() -> None:
    nobody = uses(budgeted(split, traffic=ROUTED))
    why = "Left out: the engine does not count the experts that its passes touch."
    assert (by_position("p0", nobody).caption, by_layer("p0", nobody).caption) == (why, why)
    whole = uses(run_with(by_row=False))
    assert by_position("p0", whole).caption == "Left out: the engine does not count experts token by token."
    assert by_layer("p0", whole).svg
    assert by_position("p0", uses(run_with())[:1]).caption == "Left out: no pass has two tokens of one request."


def test_tokens_that_go_to_every_expert_have_no_overlap_and_a_picture() -> None:
    experts = uses(run_with(experts=replace(EXPERTS, count=4)))
    assert [row[4] for row in texts(by_position("p0", experts).tables[0])] == ["–"] * 4
    svg = by_position("p0", experts).svg or ""
    assert "4 tokens 4.00 of 4." in svg and "overlap of" not in svg.partition("aria-label")[2].partition(">")[0]
    assert by_layer("p0", experts).svg


def test_a_dense_target_has_neither_picture() -> None:
    assert not uses(budgeted())
    assert not uses(replace(budgeted(), budgets={}))
