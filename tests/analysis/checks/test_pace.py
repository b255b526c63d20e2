"""Counts of a server against its chunks, at any pace; and what lies before the first chunk."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.analysis import rounds
from specgate.analysis.checks.pace import check_engine_clock, check_first_chunks, check_steps, least_steps
from specgate.contract import BASELINE, ENGINE_DECODE_NS, Block, Role, Served, ServedRequest
from specgate.contract.acceptance import AcceptanceRecord, Totals
from specgate.errors import InvalidResult
from specgate.files.json_text import from_plain
from tests.analysis.checks.test_served import block, plan
from tests.support.kept_runs import file_of

MS = 1_000_000
K = 3
STEPS = st.lists(st.integers(1, K + 1), min_size=8, max_size=60)


def streamed(events: list[tuple[int, int]], first_ms: int = 10) -> ServedRequest:
    """A request whose first token comes after `first_ms`; `events`: (ns since then, tokens)."""
    chunks = [(0, 1), *events]
    return ServedRequest(0, tuple(first_ms * MS + at for at, _ in chunks), tuple(n for _, n in chunks))


def spec(request: ServedRequest, steps: int) -> Block:
    emitted = sum(request.chunk_tokens) - 1
    totals = Totals(steps, K * steps, emitted - steps)
    record = AcceptanceRecord(K, (), (), emitted, 0, totals)
    made = replace(block(plan().rounds[0], Role(K)), tokens=((1,) * (emitted + 1),), truncated=(0,), prompt_tokens=())
    return replace(made, served=Served((request,), record), prefill_ns=request.chunk_ns[0])


def baseline(first_ms: int, tokens: int) -> Block:
    request = streamed([(2 * MS * (i + 1), 1) for i in range(tokens)], first_ms)
    made = replace(block(plan().rounds[0], BASELINE), tokens=((1,) * (tokens + 1),), truncated=(0,), prompt_tokens=())
    return replace(made, served=Served((request,), None), prefill_ns=request.chunk_ns[0])


@given(STEPS, st.integers(1, 6), st.floats(2.0, 50.0))
def test_no_honest_stream_needs_more_steps_than_it_had(sizes: list[int], together: int, step_ms: float) -> None:
    """A chunk per step, chunks of several steps, and a chunk per token of each step, some microseconds apart."""
    ends = [round(step_ms * MS * (i + 1)) for i in range(len(sizes))]
    per_step = list(zip(ends, sizes, strict=True))
    groups = [per_step[i : i + together] for i in range(0, len(sizes), together)]
    joined = [(group[-1][0], sum(n for _, n in group)) for group in groups]
    per_token = [(end + 20_000 * i, 1) for end, n in per_step for i in range(n)]
    for events in (per_step, joined, per_token):
        assert least_steps(streamed(events), K, sum(sizes) / len(sizes)) <= len(sizes)
        check_steps([spec(streamed(events), len(sizes))])
    assert least_steps(streamed(per_step), K, sum(sizes) / len(sizes)) == len(sizes), (
        "steps that came apart are all seen"
    )


@given(STEPS, st.booleans())
def test_fewer_steps_than_came_apart_are_refused_with_both_figures(sizes: list[int], per_token: bool) -> None:
    ends = [5 * MS * (i + 1) for i in range(len(sizes))]
    events = [
        (end + 20_000 * i, n if not per_token else 1)
        for end, n in zip(ends, sizes, strict=True)
        for i in range(n if per_token else 1)
    ]
    claimed = int((len(sizes) - 1) / 1.02) - 1
    with pytest.raises(InvalidResult, match=rf"counts {claimed} steps .* need {len(sizes)} at least"):
        check_steps([spec(streamed(events), claimed)])


def test_a_block_whose_chunks_a_stall_has_parted_is_no_contradiction_among_blocks_that_were_on_time() -> None:
    """Of 40 steps of 3 tokens, a chunk each, a stall of 2 ms parts some: 4 steps more are seen."""
    ends = [5 * MS * (i + 1) for i in range(40)]
    stalled = [(end + 2 * MS * (i == 2 and step < 4), 1) for step, end in enumerate(ends) for i in range(3)]
    honest = streamed([(end + 20_000 * i, 1) for end in ends for i in range(3)])
    assert least_steps(streamed(stalled), K, 3) == 44
    blocks = [spec(request, 40) for request in (streamed(stalled), honest, honest, honest)]
    check_steps(blocks)
    with pytest.raises(InvalidResult, match=r"counts 144 steps .* 480 chunks .* need 164 at least"):
        check_steps([spec(request, 36) for request in (streamed(stalled), honest, honest, honest)])


def test_a_token_at_a_time_at_an_even_pace_is_no_speculation() -> None:
    """Each of 60 tokens comes alone, and the server counts 15 steps of 4."""
    events = [(2 * MS * (i + 1), 1) for i in range(60)]
    with pytest.raises(InvalidResult, match=r"counts 15 steps for 60 tokens, but its 60 chunks .* need 30 .*2\.000"):
        check_steps([spec(streamed(events), 15)])


@pytest.mark.parametrize("claimed_length", [1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8])
def test_plain_decoding_that_claims_any_length_is_seen(claimed_length: float) -> None:
    """A counted step is as long as the claim: its groups must not grow as fast."""
    even = streamed([(2 * MS * (i + 1), 1) for i in range(240)])
    claimed = round(240 / claimed_length)
    with pytest.raises(InvalidResult, match=rf"counts {claimed} steps for 240 tokens"):
        check_steps([replace(spec(even, claimed), role=Role(7))])


def starved(seed: int) -> ServedRequest:
    """A token at a time from 60 steps of 10 ms of up to 8 tokens, with a pause of 0.6 ms or more before two chunks in
    100. A late chunk holds up those behind it.
    """
    chance, at, events = random.Random(seed), 0.0, []
    for step in range(60):
        at = max(at, 10.0 * (step + 1))
        for _ in range(chance.choice((4, 6, 8))):
            at += 0.02 + (min(0.6 * chance.paretovariate(1.3), 40.0) if chance.random() < 0.02 else 0.0)
            events.append((round(at * MS), 1))
    return streamed(events)


def test_a_step_whose_tokens_a_starved_host_parts_is_one_step() -> None:
    """Blocks of 8 requests, 50 times: the honest count is taken each time, and one step in place of 1.5 never."""
    for first in range(0, 400, 8):
        requests = [starved(seed) for seed in range(first, first + 8)]
        check_steps([replace(spec(request, 60), role=Role(7)) for request in requests])
        with pytest.raises(InvalidResult, match="counts 320 steps"):
            check_steps([replace(spec(request, 40), role=Role(7)) for request in requests])


@pytest.mark.parametrize(
    "name", ["2026-11-25-vllm-h100/run-64-prompts-vllm.tar.xz", "2026-11-27-engines-h200/run-sglang-full-32k.tar.xz"]
)
def test_real_servers_count_a_step_for_each_chunk_and_hold_nothing_back(name: str) -> None:
    """vLLM 0.25.1 with 8 requests at once, and SGLang 0.5.17 at 32K."""
    lines = file_of(name, "samples/blocks.jsonl").splitlines()
    blocks = [from_plain(Block, json.loads(line), Path(name)) for line in lines]
    cell = next(b.cell for b in blocks if b.role.speculative)
    for made in blocks:
        check_steps([made])
        if made.served and made.served.acceptance:
            steps = made.served.acceptance.steps
            requests = made.served.requests
            assert sum(least_steps(request, made.role.k, made.emitted / steps) for request in requests) == steps
    pairs = list(rounds.pairs_of(blocks, cell))
    check_first_chunks(pairs)
    check_engine_clock(pairs)
    assert len(pairs) >= 8


def pairs_of(first_ms: int, events: list[tuple[int, int]], base_ms: int = 10) -> list[tuple[Block, Block]]:
    spec_block = spec(streamed(events, first_ms), len(events))
    return [(baseline(base_ms, spec_block.emitted), spec_block)] * 4


EVENTS = [(3 * MS * (i + 1), 3) for i in range(20)]
"""60 ms of decoding."""


@pytest.mark.parametrize(("first_ms", "base_ms"), [(10, 10), (20, 10), (120, 100), (5, 100)])
def test_a_first_chunk_about_as_late_as_the_baselines_is_taken(first_ms: int, base_ms: int) -> None:
    check_first_chunks(pairs_of(first_ms, EVENTS, base_ms))


@pytest.mark.parametrize(("first_ms", "base_ms", "share"), [(30, 10, "33%"), (160, 100, "100%")])
def test_a_first_chunk_that_decoding_may_lie_before_is_refused(first_ms: int, base_ms: int, share: str) -> None:
    with pytest.raises(InvalidResult, match=rf"after {first_ms}\.0 ms .* after {base_ms}\.0 ms.* which is {share}"):
        check_first_chunks(pairs_of(first_ms, EVENTS, base_ms))


def test_one_late_block_of_four_is_a_busy_machine() -> None:
    late, usual = pairs_of(60, EVENTS), pairs_of(10, EVENTS)
    check_first_chunks([*late[:2], *usual[:2]])
    with pytest.raises(InvalidResult, match="first tokens came after"):
        check_first_chunks([*late, usual[0]])


def test_tokens_that_came_with_the_first_chunk_were_not_timed() -> None:
    def begun_with(tokens: int) -> list[tuple[Block, Block]]:
        ((base, made), *_) = pairs_of(10, EVENTS)
        assert made.served is not None
        (request,) = made.served.requests
        sizes = (tokens, *request.chunk_tokens[1:])
        begun = replace(request, chunk_tokens=sizes)
        return [(base, replace(spec(begun, 30), tokens=((1,) * sum(sizes),)))] * 4

    check_first_chunks(begun_with(1 + K + 1 + 6))
    with pytest.raises(InvalidResult, match="100 of 356 emitted tokens came with the first chunks"):
        check_first_chunks(begun_with(30))


@pytest.mark.parametrize(
    ("base", "spec_share", "message"),
    [
        (0.98, 0.95, None),
        (0.5, 0.5, None),  # a slow front end slows down both
        (1.05, 1.08, None),
        (1.0, 1.9, "engine's own clock counts .* of decoding, but their chunks came within"),
        (0.5, 1.0, "the baseline's chunks took 2.00 times as long as its engine decoded by its own clock"),
        (1.0, 0.4, None),
    ],
)
def test_an_engines_own_clock_is_held_against_the_clients(base: float, spec_share: float, message: str | None) -> None:
    def clocked(made: Block, share: float) -> Block:
        return replace(made, counters={**made.counters, ENGINE_DECODE_NS: round(share * made.decoding_ns)})

    pairs = pairs_of(10, [(at, 3) for at in accumulate([20 * MS] * 40)])
    pairs = [(clocked(a, base), clocked(b, spec_share)) for a, b in pairs]
    if message is None:
        check_engine_clock(pairs)
    else:
        with pytest.raises(InvalidResult, match=message):
            check_engine_clock(pairs)
