"""Counts of experts that no router can give make a cell INVALID, with place and figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specgate.analysis.checks.contradictions import CheckFacts
from specgate.analysis.checks.experts import check_experts
from specgate.analysis.reduce import measure
from specgate.contract import Block, EngineFacts, NearTies, Role
from specgate.contract.cycle_budget import Bandwidth
from specgate.contract.routing import ExpertCounts
from specgate.contract.traffic import PassTraffic, Traffic
from specgate.errors import InvalidResult
from tests.support.experts import EXPERTS, ROUTED, with_counts
from tests.support.factories import block, blocks_of, plan_of, run_of, scenario

PLAN = plan_of(scenario(batch=(2,)))
FACTS: EngineFacts = replace(next(iter(run_of(plan_of(), ()).engines.values())), traffic=ROUTED)


def spec(**how: Any) -> Block:
    return with_counts(block(PLAN.rounds[0], Role(3)), **how)


def counts(of: Block) -> ExpertCounts:
    assert of.experts is not None
    return of.experts


@settings(max_examples=30)
@given(st.floats(0, 1), st.booleans(), st.integers(1, 3), st.sampled_from([0, 3]))
def test_what_any_router_does_is_accepted(overlap: float, by_row: bool, batch: int, k: int) -> None:
    made = block(plan_of(scenario(batch=(batch,))).rounds[0], Role(k), steps=4)
    check_experts(with_counts(made, overlap=overlap, by_row=by_row), FACTS, "here")


def test_slots_that_have_ended_send_no_rows() -> None:
    whole = block(PLAN.rounds[0], Role(3), steps=3)
    ended = replace(whole, accepted=((1, 0), (2, -1), (-1, -1)), drafted=((3, 3), (3, -1), (-1, -1)))
    made = with_counts(ended)
    assert counts(made).touched[2] == 0
    check_experts(made, FACTS, "here")


def test_blocks_without_counts_and_engines_without_facts_are_as_before() -> None:
    check_experts(replace(spec(), experts=None), FACTS, "here")
    check_experts(spec(), None, "here")
    check_experts(spec(), replace(FACTS, traffic=None), "here")


def with_first_step(expert_counts: ExpertCounts, touched: int) -> ExpertCounts:
    return replace(expert_counts, touched=(touched, *expert_counts.touched[1:]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: with_first_step(c, 15), "step 0: 15 experts touched in 4 layers by 8 tokens of 4 experts each: 16"),
        (lambda c: with_first_step(c, 129), "step 0: 129 experts touched in 4 layers by 8 tokens .* 16 to 128 are"),
        (lambda c: replace(c, touched=c.touched[:-1]), "experts touched in 11 steps, but the block has 12"),
        (lambda c: replace(c, fresh=c.fresh[:2]), "fresh experts of 2 rows, but slots have up to 4"),
        (lambda c: replace(c, fresh=(384, 0, 0, 0)), r"\d+ experts touched, but the rows bring 384 fresh ones"),
    ],
)
def test_what_no_router_can_do_is_refused(change: Callable[[ExpertCounts], ExpertCounts], message: str) -> None:
    made = spec(overlap=0.0)
    with pytest.raises(InvalidResult, match=message):
        check_experts(replace(made, experts=change(counts(made))), FACTS, "here")


def test_the_rows_of_a_slot_alone_bring_exactly_what_its_passes_touch() -> None:
    made = with_counts(block(plan_of().rounds[0], Role(3)))
    numbers = counts(made)
    with pytest.raises(InvalidResult, match="but the rows bring"):
        check_experts(
            replace(made, experts=replace(numbers, fresh=(*numbers.fresh[:-1], numbers.fresh[-1] + 1))), FACTS, "x"
        )


def test_a_dense_engine_has_no_experts_to_count() -> None:
    dense = replace(FACTS, traffic=Traffic(PassTraffic(1, 0, ())))
    with pytest.raises(InvalidResult, match="by its traffic the engine's target has none"):
        check_experts(spec(), dense, "here")


# ── in a run ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def codes(change: Callable[[Block], Block], bandwidth: Bandwidth | None = None) -> list[str | None]:
    plan = plan_of()
    blocks = blocks_of(plan, jitter=0, change=change)
    check_facts = CheckFacts(dict.fromkeys(run_of(plan, ()).engines, FACTS), bandwidth)
    return [c.reason_code for c in measure(plan, blocks, (), NearTies(), check_facts=check_facts)[0]]


def test_a_cell_whose_experts_cannot_be_is_invalid() -> None:
    def broken(made: Block) -> Block:
        made = with_counts(made)
        return replace(made, experts=with_first_step(counts(made), 1)) if made.role.k else made

    assert codes(with_counts) == [None, None]
    assert codes(broken) == [None, "counter_identity"]


def test_a_step_must_have_read_the_experts_that_it_counts() -> None:
    """Spec cycles of 14 ms. 4 layers of 16 independent experts of 50 MB, 5.35 GB of the rest, less 1 GB of caches."""
    slow = Bandwidth("2026-11-23T00:00:00+00:00", "scripted clock", "GPU-1", 1 << 33, 30, 4.1e11, 0.0, 10**9)
    assert EXPERTS.distinct(4) * 4 * 0.05 > 2.0
    assert codes(lambda b: b, slow) == [None, None]
    assert codes(lambda b: with_counts(b, overlap=1.0), slow) == [None, None]
    assert codes(lambda b: with_counts(b, overlap=0.0), slow) == [None, "faster_than_memory"]
