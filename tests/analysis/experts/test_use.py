"""The experts of a cell: figures out of counts, and the overlap that a speed gate would take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specgate.analysis.experts import use_of
from specgate.contract import Block, Role, Run
from specgate.contract.cycle_budget import Ceiling, CycleBudget
from specgate.contract.routing import ExpertUse
from tests.support.budgets import MEMORY, budgeted, split
from tests.support.experts import EXPERTS, ROUTED, with_counts
from tests.support.factories import block, plan_of, scenario


def blocks(k: int = 3, batch: int = 1, **how: Any) -> list[Block]:
    plan = plan_of(scenario(batch=(batch,)))
    return [with_counts(block(r, Role(k)), **how) for r in plan.rounds if not r.warmup]


def used(result: list[Block]) -> ExpertUse:
    use = use_of(result, EXPERTS)
    assert use is not None
    return use


# ── figures ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=10)
@given(st.floats(0, 1), st.integers(1, 3), st.sampled_from([0, 3]))
def test_every_table_has_the_same_mean(overlap: float, batch: int, k: int) -> None:
    use = used(blocks(k, batch, overlap=overlap))
    assert use.bytes_per_pass == pytest.approx(use.touched * 4 * 50e6)
    assert [of.row for of in use.by_row] == list(range(1, k + 2)) and use.by_row[0].touched == 4.0
    if batch == 1:
        assert use.by_row[-1].touched == pytest.approx(use.touched)
    assert use.slots[0].rows == (k + 1,) * batch


def test_tokens_that_choose_alike_overlap_wholly_and_independent_ones_hardly() -> None:
    alike, apart = used(blocks(overlap=1.0)), used(blocks(overlap=0.0))
    assert (alike.touched, alike.overlap, alike.by_row[3].overlap) == (4.0, 1.0, 1.0)
    assert apart.overlap == pytest.approx(0.0, abs=0.05)
    assert apart.touched == pytest.approx(apart.independent, rel=0.03)
    assert alike.independent == apart.independent == pytest.approx(EXPERTS.distinct(4))


def test_the_overlap_of_a_slot_alone_needs_no_count_of_its_rows() -> None:
    assert used(blocks(by_row=False)).overlap == pytest.approx(used(blocks()).overlap)
    assert used(blocks(batch=2, by_row=False)).overlap is None
    assert used(blocks(k=0)).overlap is None  # one token has no neighbour in its pass


def test_what_nobody_counted_is_what_independent_tokens_touch() -> None:
    replaces = [replace(b, experts=None) for b in blocks(batch=2)]
    use = used([*replaces[:-1], blocks(batch=2)[-1]])
    assert not use.counted and use.overlap is None
    assert use.touched == use.independent == pytest.approx(EXPERTS.distinct_of_slots([4, 4]))
    assert use.by_row == ()


def test_slots_that_end_leave_passes_with_fewer_rows() -> None:
    whole = block(plan_of(scenario(batch=(2,))).rounds[1], Role(3), steps=3)
    ended = replace(whole, accepted=((1, 0), (2, -1), (-1, -1)), drafted=((3, 3), (1, -1), (-1, -1)))
    use = used([with_counts(ended)])
    assert [(of.rows, of.passes) for of in use.slots] == [((4, 4), 1), ((2,), 1)]
    nobody = replace(whole, accepted=((-1, -1),) * 3, drafted=((-1, -1),) * 3)
    assert use_of([with_counts(nobody)], EXPERTS) is None


# ── what a gate takes ────────────────────────────────────────────────────────────────────────────────────────────────

SPEC, KINDS = Role(3), pytest.mark.parametrize("kind", ["micro", "full"])


def counted(overlap: float, **how: Any) -> Callable[[Block], Block]:
    return lambda b: with_counts(split(b), overlap=overlap, **how)


def run_with(overlap: float, floor: float, **how: Any) -> Run:
    return budgeted(counted(overlap), floor=floor, traffic=ROUTED, **how)


def spec_of(run: Run) -> tuple[CycleBudget, Ceiling]:
    (budget,) = (b for key, b in run.budgets.items() if key.endswith("/spec-3"))
    (ceiling,) = budget.ceilings
    return budget, ceiling


def highest(budget: CycleBudget) -> float:
    assert budget.limit is not None
    return budget.limit.highest


@KINDS
@pytest.mark.parametrize("batch", [1, 2])
def test_the_needed_overlap_is_that_of_the_run_which_can_just_reach_the_gate(
    kind: Literal["micro", "full"], batch: int
) -> None:
    other, _ = spec_of(run_with(0.7, 2.0, kind=kind, batch=batch))
    assert other.experts is not None and other.experts.overlap is not None
    budget, ceiling = spec_of(run_with(0.1, highest(other) * (1 - 1e-9), kind=kind, batch=batch))
    assert highest(budget) < ceiling.min and ceiling.reachable is False
    assert ceiling.needed_overlap == pytest.approx(other.experts.overlap, abs=1e-6 if batch == 1 else 0.05)
    _, back = spec_of(run_with(0.7, highest(budget), kind=kind, batch=batch))
    assert back.reachable is True and budget.experts is not None and budget.experts.overlap is not None
    assert back.needed_overlap == pytest.approx(budget.experts.overlap, abs=1e-6 if batch == 1 else 0.05)


def test_a_gate_beyond_equal_choice_and_one_that_independent_tokens_reach() -> None:
    equal, _ = spec_of(run_with(1.0, 2.0))
    assert spec_of(run_with(0.5, highest(equal) * 1.001))[1].needed_overlap is None
    assert spec_of(run_with(0.5, 1.0))[1].needed_overlap == 0.0


def test_without_counts_a_gate_is_held_against_independent_tokens() -> None:
    equal, _ = spec_of(run_with(1.0, 2.0))
    budget, ceiling = spec_of(budgeted(split, floor=highest(equal) * 0.999, traffic=ROUTED))
    assert budget.experts is not None and not budget.experts.counted
    assert ceiling.reachable is False and ceiling.needed_overlap == pytest.approx(1.0, abs=0.02)


def test_a_dense_target_and_an_unknown_floor_have_no_needed_overlap() -> None:
    assert spec_of(budgeted(split))[1].needed_overlap is None
    assert spec_of(budgeted(split))[0].experts is None
    assert spec_of(run_with(0.5, 2.0, bandwidth=None))[1].needed_overlap is None


def test_the_floor_of_the_targets_pass_is_dense_weights_rows_and_the_experts_touched() -> None:
    budget, _ = spec_of(run_with(0.5, 2.0))
    (verify,) = (p for p in budget.parts if p.name == "verify")
    assert budget.experts is not None and verify.moved is not None and verify.floor_ms is not None
    assert verify.moved.weights == pytest.approx(3e9 + 4 * 8192 + budget.experts.bytes_per_pass)
    assert verify.floor_ms == pytest.approx(verify.moved.total / MEMORY.bytes_per_s * 1e3)
