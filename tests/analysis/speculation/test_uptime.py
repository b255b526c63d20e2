"""Acceptance over uptime: requests are counted as the engine answers them, and blocks compared within prompt sets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from specgate.analysis.speculation.uptime import (
    Answered,
    fall_pct,
    in_words,
    requests_by_block,
    requests_needed,
    with_drifts,
)
from specgate.contract import AcceptanceDrift, Block, CellResult
from tests.support.factories import block, blocks_of, plan_of, run_of, scenario

PLAN = plan_of(scenario(prompt_sets=4, rounds=4, batch=(2,)))


def going_stale(made: Block) -> Block:
    """Every further round accepts one draft less in its first step."""
    if not made.role.speculative:
        return made
    pattern = [3, 3, 3, 3]
    pattern[: made.round] = [0] * made.round
    [round_] = [r for r in PLAN.rounds_of(made.point) if (r.prompt_set, r.index, r.warmup) == identity(made)]
    return block(round_, made.role, accept=pattern, step_ns=made.step_ns[0])


def identity(made: Block) -> tuple[int, int, bool]:
    return made.prompt_set, made.round, made.warmup


def drift(change: Callable[[Block], Block] = lambda b: b, **facts: str) -> AcceptanceDrift | None:
    blocks = blocks_of(PLAN, change=change)
    run = run_of(PLAN, blocks)
    engines = {key: replace(f, details={**f.details, **facts}) for key, f in run.engines.items()}
    return result(with_drifts(run.cells, requests_by_block(blocks, engines), blocks, engines)).drift


def result(cells: tuple[CellResult, ...]) -> CellResult:
    [results] = [c for c in cells if c.cell.role.speculative]
    return results


def test_an_engine_that_repeats_itself_has_no_drift_and_says_over_how_many_requests() -> None:
    results = drift()
    assert results is not None and (results.slope, results.error) == (0, 0)
    assert results.requests == 2 * 16  # two per block; warm-up came before the first that is judged
    assert len(results.blocks) == 16
    assert in_words(results, (0.005, 0.0035)).startswith(
        "every block of a prompt set accepted the same, over 32 requests"
    )


def test_an_engine_that_goes_stale_loses_tokens_per_thousand_requests() -> None:
    results = drift(going_stale)
    assert results is not None
    # Round r accepts 3 drafts in (4 - r) / 4 of its steps, and a round of all sets is 8 requests.
    assert results.slope == pytest.approx(-0.75 / 8 * 1000, rel=1e-6)
    assert fall_pct(results, 0.0035)[0] > 0
    assert "falls by" in in_words(results, (0.005, 0.0035))
    unclear = in_words(replace(results, slope=0.0), (0.005, 0.0035))
    assert unclear.startswith("no trend of the acceptance length is seen") and "falls" not in unclear


def test_requests_are_counted_by_role_and_process() -> None:
    blocks = [replace(b, worker_generation=int(n >= 10)) for n, b in enumerate(blocks_of(PLAN))]
    counted = requests_by_block(blocks, {})
    for generation in (0, 1):
        for speculative in (False, True):
            mine = [b for b in blocks if (b.worker_generation, b.role.speculative) == (generation, speculative)]
            assert [counted[id(b)] for b in mine] == [Answered(generation, 2 * n, 2 * n + 2) for n in range(len(mine))]


def test_a_server_that_was_attached_goes_on_when_the_run_is_resumed() -> None:
    blocks = [replace(b, worker_generation=int(n >= 10)) for n, b in enumerate(blocks_of(PLAN))]
    engines = run_of(PLAN, blocks).engines
    attached = {key: replace(f, details={"servers": "attached"}) for key, f in engines.items()}
    counted = requests_by_block(blocks, attached)
    mine = [b for b in blocks if b.role.speculative]
    assert [counted[id(b)] for b in mine] == [Answered(None, 2 * n, 2 * n + 2) for n in range(len(mine))]
    run = run_of(PLAN, blocks)
    own, outlived = (
        result(with_drifts(run.cells, requests_by_block(blocks, e), blocks, e)).drift for e in (engines, attached)
    )
    assert own is not None and outlived is not None
    assert (own.requests, outlived.requests) == (2 * 12, 2 * 16), "the larger of two processes, and one server"


def test_requests_before_a_cells_first_block_are_no_uptime_that_was_seen() -> None:
    """Ten blocks of another point came before, and one between two blocks of the cell."""
    blocks = blocks_of(PLAN)
    other = replace(PLAN.points[0], context=PLAN.points[0].context + 1)
    elsewhere = [replace(b, point=other) for b in blocks if b.role.speculative and not b.warmup]
    at = len(blocks) // 2
    answered = [*elsewhere[:10], *blocks[:at], elsewhere[10], *blocks[at:]]
    run = run_of(PLAN, blocks)
    results = result(with_drifts(run.cells, requests_by_block(answered, run.engines), blocks, run.engines)).drift
    assert results is not None and results.requests == 2 * 16 + 2


def test_servers_that_are_started_for_every_block_have_no_uptime() -> None:
    assert drift(going_stale, servers="apart") is None
    assert drift(going_stale, servers="attached") is not None


def test_more_requests_are_needed_the_wider_the_interval() -> None:
    acceptance_drift = AcceptanceDrift(
        slope=-0.01, error=0.5, freedom=20, correlation=0.0, set_error=0.0, sets=1, length=3.0, requests=64, blocks=()
    )
    wider = replace(acceptance_drift, error=1.0)
    assert 64 < requests_needed(acceptance_drift, 2.0, 0.005) < requests_needed(wider, 2.0, 0.005)
    assert requests_needed(replace(acceptance_drift, error=1e-6), 2.0, 0.005) == 64
