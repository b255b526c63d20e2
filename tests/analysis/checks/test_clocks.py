"""The engine's clock against the harness's: what honest engines do passes, and no lie of the table does."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.analysis.checks import clocks
from specgate.contract import Block, CellResult
from tests.support.factories import blocks_of, plan_of, run_of, scenario

MS = 1_000_000


def seen(block: Block, unexplained_ns: int = 3 * MS) -> Block:
    """The block as a harness saw it that waited for all of its times, and `unexplained_ns` more."""
    return replace(block, span_ns=(7, 7 + block.elapsed_ns + unexplained_ns))


def told(block: Block, factor: float) -> Block:
    """The block with all of the engine's times but the prefill's multiplied; the harness's stay."""
    steps = tuple(round(ns * factor) for ns in block.step_ns)
    phases = {name: round(ns * factor) for name, ns in block.phase_ns.items()}
    return replace(block, step_ns=steps, elapsed_ns=sum(steps), phase_ns=phases)


def cells(lie: Callable[[Block], Block], unexplained_ns: Callable[[Block], int] = lambda b: 3 * MS) -> list[CellResult]:
    """(baseline, spec): 8 blocks each, of 120 ms and 168 ms."""
    plan = plan_of(scenario())
    return list(run_of(plan, blocks_of(plan, change=lambda b: lie(seen(b, unexplained_ns(b))))).cells)


def of(role: str, factor: float) -> Callable[[Block], Block]:
    return lambda b: told(b, factor) if b.role.name == role else b


def test_honest_clocks_agree() -> None:
    assert [c.status for c in cells(lambda b: b)] == ["ok", "ok"]


@pytest.mark.parametrize("ms", [0, 1, 5, 7.6])
def test_what_real_calls_leave_unexplained_is_allowed(ms: float) -> None:
    """7.6 ms is the most that a call of the stored runs left, but for one."""
    assert [c.status for c in cells(lambda b: b, lambda b: round(ms * MS))] == ["ok", "ok"]


def test_a_single_call_that_the_machine_held_up_is_allowed() -> None:
    def held_up(b: Block) -> int:
        return 127 * MS if b.role.speculative and (b.prompt_set, b.round) == (2, 1) else 3 * MS

    assert [c.status for c in cells(lambda b: b, held_up)] == ["ok", "ok"]


@given(st.integers(0, 1 << 32))
def test_a_loaded_machine_makes_no_honest_engine_a_liar(seed: int) -> None:
    """Calls of blocks of some ms that are held up by up to 20 ms each, whatever their role."""
    noise, plan = random.Random(seed), plan_of(scenario())
    blocks = blocks_of(
        plan, base_ns=MS // 2, cycle_ns=MS, change=lambda b: seen(b, MS + round(noise.expovariate(1 / (5 * MS))))
    )
    assert [c.status for c in run_of(plan, blocks).cells] == ["ok", "ok"]


@pytest.mark.parametrize("factor", [1 / 100, 1 / 5, 1 / 2])
def test_a_spec_time_that_is_a_part_of_the_real_one_is_invalid(factor: float) -> None:
    baseline, spec = cells(of("spec-3", factor))
    assert (baseline.status, spec.status, spec.reason_code) == ("ok", "failed", "clocks_disagree")
    assert "the engine says that its 8 blocks took" in (spec.reason or "") or "8 blocks took" in (spec.reason or "")
    assert "the harness saw 1,3" in (spec.reason or ""), "8 · 168 ms and what the calls take"


def test_a_tenth_off_the_spec_times_shows_beside_the_baseline() -> None:
    """8 · 17 ms are less than what a cell may leave unexplained, but the baseline leaves 3 ms a call."""
    _, spec = cells(of("spec-3", 0.9))
    assert (spec.status, spec.reason_code) == ("failed", "clocks_disagree")
    assert "times as long; the harness saw" in (spec.reason or "")


@pytest.mark.parametrize("factor", [30, 2, 1.05])
def test_a_baseline_that_claims_more_time_than_there_was_is_invalid(factor: float) -> None:
    baseline, spec = cells(of("baseline", factor))
    assert (baseline.status, baseline.reason_code, spec.status) == ("failed", "clocks_disagree", "ok")
    assert "the engine says that it took" in (baseline.reason or "") and "harness had the answer" in (
        baseline.reason or ""
    )


def test_both_roles_told_as_a_fifth_are_seen_although_their_ratio_is_right() -> None:
    assert [c.reason_code for c in cells(lambda b: told(b, 0.2))] == ["clocks_disagree"] * 2


@pytest.mark.parametrize("factor", [0.5, 0.95, 1.05, 3])
def test_step_times_that_do_not_add_up_are_invalid(factor: float) -> None:
    def spoil(b: Block) -> Block:
        return replace(b, step_ns=tuple(round(ns * factor) for ns in b.step_ns)) if b.role.speculative else b

    _, spec = cells(spoil)
    assert (spec.status, spec.reason_code) == ("failed", "clocks_disagree")
    assert "its 12 steps add up to" in (spec.reason or "") and "took 16" in (spec.reason or "")


@pytest.mark.parametrize("changes", [{"elapsed_ns": 0, "step_ns": (0,) * 12}, {"prefill_ns": -1}])
def test_no_time_is_negative_or_nothing(changes: dict[str, object]) -> None:
    _, spec = cells(lambda b: replace(b, **changes) if b.role.speculative else b)  # type: ignore[arg-type]
    assert (spec.status, spec.reason_code) == ("failed", "clocks_disagree")


def test_a_whole_request_lasts_with_its_prefill_as_long_as_its_call_at_most() -> None:
    plan = plan_of(scenario(kind="full"))
    short = blocks_of(plan, change=seen)
    assert {c.reason_code for c in run_of(plan, short).cells} == {"clocks_disagree"}
    enough = blocks_of(plan, change=lambda b: seen(b, b.prefill_ns + 3 * MS))
    assert {c.status for c in run_of(plan, enough).cells} == {"ok"}


def test_a_block_with_a_prefill_of_its_own_lasts_with_it_as_long_as_its_call_at_most() -> None:
    """Also in a micro run, where other engines prefill once for all blocks."""
    plan = plan_of(scenario())
    for own, statuses in ((True, {"ok"}), (False, {"failed"})):

        def change(b: Block, own: bool = own) -> Block:
            b = replace(b, own_prefill=own, prefill_ns=400 * MS)
            return seen(b, b.prefill_ns + 3 * MS)

        assert {c.status for c in run_of(plan, blocks_of(plan, change=change)).cells} == statuses


@pytest.mark.parametrize(("prefill_ms", "status"), [(50, "ok"), (80, "ok"), (150, "failed")])
def test_time_of_decoding_that_is_told_as_prefill_is_seen_beside_the_baseline(prefill_ms: int, status: str) -> None:
    def change(b: Block) -> Block:
        b = replace(b, own_prefill=True, prefill_ns=(prefill_ms if b.role.speculative else 50) * MS)
        return seen(b, b.prefill_ns + 3 * MS)

    plan = plan_of(scenario())
    spec = run_of(plan, blocks_of(plan, change=change)).cells[1]
    assert spec.status == status and (status == "ok" or "time of decoding may lie in them" in (spec.reason or ""))


@pytest.mark.parametrize(
    ("late_ms", "status"), [(0, "ok"), (2, "ok"), (3, "ok"), (-1, "failed"), (4, "failed"), (3_600_000, "failed")]
)
def test_a_block_begins_and_ends_within_its_call(late_ms: int, status: str) -> None:
    """Each call takes 3 ms more than the engine's times, so that they may begin up to 3 ms after it."""

    def change(b: Block) -> Block:
        b = seen(replace(b, own_prefill=True, prefill_ns=50 * MS), 53 * MS)
        assert b.span_ns is not None
        return replace(b, began_ns=b.span_ns[0] + late_ms * MS) if b.role.speculative else b

    plan = plan_of(scenario())
    spec = run_of(plan, blocks_of(plan, jitter=0, change=change)).cells[1]
    assert spec.status == status
    if status == "failed":
        assert spec.reason_code == "clocks_disagree"
        message = f"it began {late_ms:,}.000 ms after the harness had asked and took 218.000 ms"
        assert f"{message}, but the harness had the answer 221.000 ms after it had asked" in (spec.reason or "")


def test_blocks_without_the_harnesss_clock_are_held_to_their_own_alone() -> None:
    plan = plan_of(scenario())
    assert {c.status for c in run_of(plan, blocks_of(plan, change=of("spec-3", 0.9))).cells} == {"ok"}


def test_the_stated_limits_are_those_of_the_documentation() -> None:
    limits = clocks.CALL_NS, clocks.CALL_SHARE, clocks.PAIR_NS, clocks.PAIR_SHARE
    assert limits == (50 * MS, 0.10, 5 * MS, 0.02)
