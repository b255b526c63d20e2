"""Joint decoding: what a batch does while all its requests decode, held to what made the blocks."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.analysis.checks.verification import check_verification
from specgate.analysis.paired_blocks import compare, judged_speed, other_speedups
from specgate.analysis.requests.joint_decoding import joint_decoding
from specgate.contract import Block, Plan, Role, Round, Rule, Run, ServedRequest, State, TokenCheck
from specgate.contract.acceptance import AcceptanceRecord
from specgate.errors import InvalidResult
from specgate.gates.speed import GATE
from specgate.reports.common.summary import cell_note
from tests.support import factories
from tests.support.factories import plan_of, run_of, scenario, text

MS = 1_000_000
STEPS = 40
STEP_MS = {0: 6, 3: 8}
"""Draft length → what a step takes; a spec step of these servers always emits two tokens."""


def plan(**changes: Any) -> Plan:
    return plan_of(replace(scenario(batch=(3,), steps=STEPS), **changes))


def served_block(round_: Round, role: Role, firsts_ms: Sequence[int], stall_ms: int = 0) -> Block:
    """Requests whose first tokens come one after the other, as prompts are prefilled. Whoever decodes already gets one
    step between two prefills, `stall_ms` before it; then all decode in steps of `STEP_MS`.
    """
    each, step = (2 if role.speculative else 1), STEP_MS[role.k] * MS
    requests = []
    for slot, first in enumerate(firsts_ms):
        arrivals = [first * MS, *(later * MS + stall_ms * MS for later in firsts_ms[slot + 1 :])]
        counts = [1] + [each] * (len(arrivals) - 1)
        while sum(counts) < STEPS + 1:
            arrivals.append(max(arrivals[-1], firsts_ms[-1] * MS) + step)
            counts.append(min(each, STEPS + 1 - sum(counts)))
        requests.append(ServedRequest(0, tuple(arrivals), tuple(counts)))
    drafted = sum(len(r.chunk_ns) - 1 for r in requests)
    cut = drafted * 2 - 3 * STEPS if role.speculative else 0
    record = AcceptanceRecord(3, (0, drafted, 0, 0), (drafted,) * 3, 3 * STEPS, cut, None) if role.speculative else None
    return factories.served_block(round_, role, requests, record)


def run_with(firsts_ms: Sequence[int], request: Plan | None = None) -> Run:
    request = request or plan()
    return run_of(request, [served_block(r, role, firsts_ms) for r in request.rounds for role in r.order])


def a_round() -> Round:
    return plan().rounds[0]


@given(st.lists(st.integers(0, 3_000), min_size=3, max_size=3).map(sorted), st.booleans())
def test_the_prefill_of_others_is_not_in_it_however_long_it_takes(firsts: list[int], spec: bool) -> None:
    role = Role(3) if spec else Role(0)
    joint = joint_decoding(served_block(a_round(), role, firsts))
    assert joint is not None
    each = 2 if spec else 1
    assert joint.tpot_ms == pytest.approx(STEP_MS[role.k] / each)
    assert joint.tok_s == pytest.approx(3 * 1000 / joint.tpot_ms)
    assert 0 < joint.share <= 1


def test_what_a_server_is_judged_by_is_the_ratio_of_its_steps() -> None:
    """6 ms a token against 8 ms per two tokens."""
    comparison = run_with((100, 600, 1_100)).comparisons[0]
    assert comparison.speedup.metric == "joint_decode_speedup_ratio"
    assert comparison.speedup.value == pytest.approx(1.5)
    beside = {v.metric: v.value for v in comparison.beside}
    diluted = beside["decode_speedup_ratio"]
    assert diluted is not None and diluted < 1.1, "a second of prefill in both roles hides what speculation does"


@given(st.lists(st.integers(1, 4), min_size=3, max_size=3))
def test_with_a_queue_a_batch_gains_the_harmonic_mean_over_its_requests(each: list[int]) -> None:
    """Request i emits `each[i]` tokens in every step of 8 ms, where the baseline takes 6 ms a token."""

    def made(block: Block) -> Block:
        assert block.served is not None
        counts = [(1, *(n,) * 60) if block.role.speculative else (1,) * 61 for n in each]
        times = tuple(100 * MS + n * STEP_MS[block.role.k] * MS for n in range(61))
        requests = tuple(ServedRequest(0, times, c) for c in counts)
        tokens = tuple(text(block.prompt_set, slot, sum(c)) for slot, c in enumerate(counts))
        return replace(block, served=replace(block.served, requests=requests), tokens=tokens)

    request = plan()
    blocks = [made(served_block(r, role, (100, 100, 100))) for r in request.rounds for role in r.order]
    comparison = compare(request, request.cells[-1], blocks, TokenCheck(0, ()))
    assert comparison.cell.role.speculative
    assert comparison.speedup.value == pytest.approx(statistics.fmean(each) * 6 / 8)
    others = other_speedups(comparison)
    assert others["harmonic_decode_speedup_ratio"] == pytest.approx(statistics.harmonic_mean(each) * 6 / 8)
    assert set(others) == {"decode_speedup_ratio", "harmonic_decode_speedup_ratio"}


def test_a_verdict_names_the_speed_that_it_judges_and_the_other_two() -> None:
    run = run_with((100, 600, 1_100))
    (verdict,) = GATE.judge(Rule("speed", "speed", True, params={"min": 1.0}), run)
    others = other_speedups(run.comparisons[0])
    clock, queue = others["decode_speedup_ratio"], others["harmonic_decode_speedup_ratio"]
    assert "while all 3 requests decode: at least 1x; " in verdict.message
    assert verdict.message.endswith(f"; by the clock {clock:.3f}x, with a queue {queue:.3f}x")
    assert verdict.evidence["harmonic_decode_speedup_ratio"] == queue
    note = cell_note(run, next(r for r in run.cells if r.cell.role.speculative))
    assert note is not None
    assert f"judged while all requests decode; by the clock {clock:.2f}×, with a queue {queue:.2f}×" in note


def test_figures_of_the_cell_are_those_of_the_joint_part() -> None:
    run = run_with((100, 600, 1_100))
    base, spec = (next(c for c in run.cells if c.cell.role.speculative is s).values for s in (False, True))
    assert base["joint_tpot_ms"].value == pytest.approx(6) and base["joint_decode_tok_s"].value == pytest.approx(500)
    assert spec["joint_tpot_ms"].value == pytest.approx(4)
    share = base["joint_decode_share"].value
    assert share is not None and 0.9 < share < 1, "the tokens between two prefills are not in it"


def test_a_request_that_ends_before_another_begins_leaves_no_ratio_and_the_gate_says_why() -> None:
    """By the time the last prompt is prefilled the first request has had all its tokens."""
    blocks = []
    for round_ in plan().rounds:
        for role in round_.order:
            made = served_block(round_, role, (100, 110, 120))
            assert made.served is not None
            first, *others = made.served.requests
            late = [replace(r, chunk_ns=tuple(ns + 900 * MS for ns in r.chunk_ns)) for r in others]
            ends = max(r.chunk_ns[-1] for r in late)
            served = replace(made.served, requests=(first, *late))
            blocks.append(replace(made, served=served, elapsed_ns=ends - made.prefill_ns))
    run = run_of(plan(), blocks)
    value = run.comparisons[0].speedup
    assert (value.value, value.reason_code) == (None, "no_joint_decoding") and not run.comparisons[0].log_ratios
    (verdict,) = GATE.judge(Rule("speed", "speed", True, params={"min": 1.0}), run)
    assert verdict.state is State.INCONCLUSIVE and verdict.reason_code == "no_joint_decoding"
    assert "all 3 requests decode" in verdict.message and verdict.next_step is not None
    assert "or for a smaller batch; where a request waits in the engine's queue" in verdict.next_step
    withheld = next(c for c in run.cells if c.cell.role.speculative).values["joint_decode_tok_s"]
    assert (withheld.value, withheld.reason_code) == (None, "no_joint_decoding")
    with pytest.raises(InvalidResult, match=r"more new tokens .* a larger cache"):
        judged_speed(plan().scenarios[blocks[0].point.scenario], blocks[0])


def test_drafts_that_nobody_verified_are_seen_however_much_prefill_hides_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tokens in a quarter of a baseline step. From the first token to the last it looks like 1.2 times as fast."""
    planned = plan()
    monkeypatch.setitem(STEP_MS, 3, 1)
    blocks = [served_block(r, role, (100, 600, 1_100)) for r in planned.rounds for role in r.order]
    couples = [(a, b) for a, b in zip(blocks[::2], blocks[1::2], strict=True) if not a.warmup]
    pairs = [(a, b) if b.role.speculative else (b, a) for a, b in couples]
    (settings,) = planned.scenarios.values()
    with pytest.raises(InvalidResult, match="faster than verification allows"):
        check_verification(pairs, settings)


def test_known_steps_count_until_the_first_slot_ends() -> None:
    """Brute force over random steps of two slots, of which the second ends in the middle."""
    lot = random.Random(7)
    step_ns = [lot.randrange(5, 9) * MS for _ in range(12)]
    accepted = [(lot.randrange(4), lot.randrange(4) if n < 7 else -1) for n in range(12)]
    emitted = [sum(row[s] + 1 for row in accepted if row[s] >= 0) for s in range(2)]
    made = replace(
        served_block(a_round(), Role(3), (1, 2)),
        served=None,
        step_ns=tuple(step_ns),
        accepted=tuple(accepted),
        drafted=((3, 3),) * 12,
        elapsed_ns=2 * sum(step_ns),
        tokens=tuple((1,) * (n + 1) for n in emitted),
    )
    tokens = [sum(row[s] + 1 for row in accepted[:7]) for s in range(2)]
    joint = joint_decoding(made)
    assert joint is not None and list(joint.tokens) == tokens
    assert joint.tok_s == pytest.approx(sum(tokens) / (2 * sum(step_ns[:7]) / 1e9))
    assert joint.share == pytest.approx(sum(tokens) / sum(emitted))


def test_one_request_has_no_company_and_no_such_figure() -> None:
    micro_plan = plan_of(scenario(batch=(1,), steps=STEPS))
    run = run_with((100,), micro_plan)
    assert run.comparisons[0].speedup.metric == "decode_speedup_ratio"
    assert "joint_decode_tok_s" not in run.cells[0].values
