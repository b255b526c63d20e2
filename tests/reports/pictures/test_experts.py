"""Experts touched: what stands in the table of a cycle's picture is what was counted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specgate.contract import Block
from specgate.contract.traffic import ExpertTraffic
from specgate.reports.pictures.cycle import Budgets, budgets_of, expert_tables
from tests.support.budgets import budgeted, split
from tests.support.experts import EXPERTS, ROUTED, with_counts


def budgets(*, by_row: bool = True, experts: ExpertTraffic = EXPERTS) -> Budgets:
    def counted(made: Block) -> Block:
        return with_counts(split(made), overlap=0.5, by_row=by_row, experts=experts)

    traffic = replace(ROUTED, target=replace(ROUTED.target, experts=experts))
    run = budgeted(counted, traffic=traffic, batch=2)
    return budgets_of(run, run.cells)


def test_every_position_stands_with_its_experts_and_its_overlap() -> None:
    (_, (_, budget)) = both = budgets()
    assert budget.experts is not None
    (table,) = expert_tables(both)
    rows = [[str(text) for text in row] for row in table.rows]
    assert [row[:2] for row in rows] == [["spec-3", str(n)] for n in (1, 2, 3, 4)]  # the baseline has no neighbours
    assert [float(row[2]) for row in rows] == pytest.approx([of.touched for of in budget.experts.by_row], abs=0.005)
    assert [float(row[3]) for row in rows] == pytest.approx([EXPERTS.distinct(n) for n in (1, 2, 3, 4)], abs=0.005)
    assert [row[4] for row in rows] == ["–", *(f"{of.overlap:.2f}" for of in budget.experts.by_row[1:])]


def test_tokens_that_go_to_every_expert_have_no_overlap() -> None:
    (table,) = expert_tables(budgets(experts=replace(EXPERTS, count=4)))
    assert [row[4] for row in table.rows] == ["–"] * 4


def test_what_was_not_counted_token_by_token_has_no_table() -> None:
    assert not [*expert_tables(budgets(by_row=False))]
