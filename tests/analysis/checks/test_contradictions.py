"""Cells that contradict themselves: the cell alone, for its own reason, and nothing of it is quoted."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from specgate.contract import Block, Rule, Run, State
from specgate.gates import validity
from tests.support.factories import blocks_of, corrupt, margins_of, plan_of, run_of, scenario


def spoilt(block: Block) -> Block:
    return replace(block, counters={"rewound_tokens": -1}) if block.role.k == 3 else block


def test_a_contradiction_fails_its_cell_and_no_other() -> None:
    plan = plan_of(scenario(spec=(2, 3)))
    run = run_of(plan, blocks_of(plan, change=spoilt))
    assert [c.status for c in run.cells] == ["ok", "ok", "failed"]
    failed = run.cells[2]
    assert (failed.reason_code, failed.values, failed.acceptance) == ("counter_identity", {}, None)
    assert run.comparisons[1].speedup.reason_code == "no_pairs"


def test_a_contradiction_among_warm_up_blocks_is_none_of_a_measurement() -> None:
    plan = plan_of()
    run = run_of(plan, blocks_of(plan, change=lambda b: spoilt(b) if b.warmup else b))
    assert {c.status for c in run.cells} == {"ok"}


@pytest.mark.parametrize(
    ("top1", "top2"), [(-1.0, 0.0), (math.nan, 0.0), (1.0, math.nan), (math.inf, 0.0), (0.0, -math.inf)]
)
def test_a_margin_that_cannot_be_is_no_near_tie_but_a_contradiction(top1: float, top2: float) -> None:
    plan = plan_of()
    blocks = blocks_of(plan, change=corrupt)
    margins = [replace(m, top1=top1, top2=top2) for m in margins_of(blocks, 0.0)]
    run = run_of(plan, blocks, margins=margins, near_tie=1e-3)
    assert (run.cells[1].status, run.cells[1].reason_code) == ("failed", "margin_impossible")
    assert f"are {top1:g} and {top2:g}" in (run.cells[1].reason or "")


def test_equal_logits_are_a_near_tie() -> None:
    plan = plan_of()
    blocks = blocks_of(plan, change=corrupt)
    assert run_of(plan, blocks, margins=margins_of(blocks, 0.0), near_tie=1e-3).cells[1].status == "ok"


def test_the_verdict_on_such_a_cell_has_its_reason_code_and_its_sentence() -> None:
    plan = plan_of()
    run: Run = run_of(plan, blocks_of(plan, change=spoilt))
    _, result = validity.GATE.judge(Rule("records", "validity", True), run)
    assert (result.state, result.reason_code) == (State.INVALID, "counter_identity")
    assert result.message == f"no figures: {run.cells[1].reason}" and "rewound_tokens = -1" in result.message
