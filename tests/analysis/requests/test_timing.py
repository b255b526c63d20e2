"""Requests on their own clocks: the field's identities, and what two benchmarks would make of the same arrivals."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.analysis.requests.timing import TimedRequest, of_server, requests_of
from specgate.contract import Block, Finish, Role, ServedRequest
from tests.support.factories import block, plan_of, scenario, text

ROUND = next(r for r in plan_of(scenario(batch=(2,))).rounds if not r.warmup)


@st.composite
def cut_off_blocks(draw: st.DrawFn) -> Block:
    """A spec-3 block of two slots. Each ends after some steps of its own, and its last step may be cut off."""
    steps = draw(st.integers(1, 12))
    step_ns = tuple(draw(st.lists(st.integers(1, 10**9), min_size=steps, max_size=steps)))
    accepts = [draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)) for n in (steps, draw(st.integers(1, steps)))]
    truncated = tuple(draw(st.integers(0, of_slot[-1])) for of_slot in accepts)
    rows = tuple(tuple(a[step] if step < len(a) else -1 for a in accepts) for step in range(steps))
    lengths = [1 + sum(a) + len(a) - cut for a, cut in zip(accepts, truncated, strict=True)]
    return replace(
        block(ROUND, Role(3), steps=steps),
        step_ns=step_ns,
        elapsed_ns=draw(st.integers(sum(step_ns), 2 * sum(step_ns))),
        accepted=rows,
        drafted=tuple(tuple(3 if a >= 0 else -1 for a in row) for row in rows),
        truncated=truncated,
        finish=(Finish.LENGTH, Finish.LENGTH),
        tokens=tuple(text(0, slot, n) for slot, n in enumerate(lengths)),
    )


@given(cut_off_blocks())
def test_the_times_of_a_request_add_up(made: Block) -> None:
    requests = list(requests_of(made, True))
    for request, tokens in zip(requests, made.tokens, strict=True):
        assert request.ttft_ms is not None and request.e2e_ms is not None and request.tpot_ms is not None
        assert len(request.itl_ms) == len(tokens) - 1, "one per output token after the first"
        decode = request.e2e_ms - request.ttft_ms
        assert math.fsum(request.itl_ms) == pytest.approx(decode)
        assert math.fsum(request.gaps_ms) == pytest.approx(decode)
        assert request.tpot_ms == pytest.approx(decode / (len(tokens) - 1))
    longest = max(request.decode_ns or 0.0 for request in requests)
    assert longest == pytest.approx(made.elapsed_ns), "the last request ends with its block"


@given(cut_off_blocks())
def test_a_micro_run_has_no_first_token_of_its_own(made: Block) -> None:
    for request in requests_of(made, False):
        assert request.ttft_ms is None and request.e2e_ms is None and request.tpot_ms is not None


@given(st.integers(0, 10**6), st.lists(st.tuples(st.integers(1, 10**9), st.integers(1, 4)), min_size=1, max_size=20))
def test_a_servers_chunks_are_what_two_benchmarks_would_make_of_them(sent: int, came: list[tuple[int, int]]) -> None:
    """vLLM's client takes the gap before every chunk, SGLang's that gap shared by the tokens of the chunk."""
    clock, last = sent, None
    arrived: list[int] = []
    vllm: list[float] = []
    sglang: list[float] = []
    for wait, tokens in came:
        clock += wait
        arrived.append(clock)
        if last is not None:
            vllm.append((clock - last) / 1e6)
            sglang += [(clock - last) / tokens / 1e6] * tokens
        last = clock
    counts = tuple(tokens for _, tokens in came)
    request = of_server(ServedRequest(sent, tuple(arrived), counts), sum(counts))
    assert list(request.gaps_ms) == pytest.approx(vllm)
    assert request.itl_ms == pytest.approx(sglang)
    assert request.ttft_ms == pytest.approx(came[0][0] / 1e6)


def test_a_request_of_one_token_has_no_time_per_token() -> None:
    assert TimedRequest(1e6, 0.0, 1, (), ()).tpot_ms is None
