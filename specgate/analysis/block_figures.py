"""The figures of single blocks (`contract.metrics`)."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from specgate.analysis.checks.served import prefill_tok_s
from specgate.analysis.paired_blocks import speed
from specgate.analysis.requests.arrivals import step_ms, step_unit
from specgate.analysis.requests.joint_decoding import decodes_in_company, joint_decoding
from specgate.analysis.requests.timing import TimedRequest, requests_of
from specgate.contract import Block
from specgate.contract.metrics import per_request

PHASES: Final = ("draft", "verify", "accept", "commit")
Figures = dict[str, Callable[[Block], float]]
"""Metric → how to compute it for one block."""


def block_figures(blocks: Sequence[Block], whole_requests: bool) -> Figures:
    """The metrics that are medians over `blocks`; empty where there is no block."""
    if not blocks:
        return {}
    served = any(b.served for b in blocks)
    return {
        **joint_figures(blocks, whole_requests),
        "decode_tok_s": lambda b: speed(b, False),
        "decode_tok_s_per_user": lambda b: speed(b, False) / len(b.tokens),
        **(whole_figures() if whole_requests else {}),
        **(served_figures(blocks) if served else step_figures(blocks)),
    }


def joint_figures(blocks: Sequence[Block], whole_requests: bool) -> Figures:
    """Figures of a batch while all its requests decode; none if one of the blocks has no such time."""
    if not all(decodes_in_company(b, whole_requests) for b in blocks):
        return {}
    joint_by_block = {id(b): joint for b in blocks if (joint := joint_decoding(b)) is not None}
    if len(joint_by_block) < len(blocks):
        return {}
    return {
        "joint_decode_tok_s": lambda b: joint_by_block[id(b)].tok_s,
        "joint_tpot_ms": lambda b: joint_by_block[id(b)].tpot_ms,
        "joint_decode_share": lambda b: joint_by_block[id(b)].share,
    }


JOINT: Final = ("joint_decode_tok_s", "joint_tpot_ms", "joint_decode_share")
"""The figures of `joint_figures`."""


def whole_figures() -> Figures:
    """Output tokens per second of whole requests."""
    return {"output_tok_s": lambda b: speed(b, True), "output_tok_s_per_user": lambda b: speed(b, True) / len(b.tokens)}


def step_figures(blocks: Sequence[Block]) -> Figures:
    """Figures of an engine whose steps are known."""
    return {
        "step_ms": lambda b: statistics.median(b.step_ns) / 1e6,
        **{f"{p}_ms": partial(ms_per_step, p) for p in PHASES if all(p in b.phase_ns for b in blocks)},
        "prefill_tok_s": lambda b: sum(b.prompt_lengths) / (b.prefill_ns / 1e9) if b.prefill_ns else 0.0,
    }


def served_figures(blocks: Sequence[Block]) -> Figures:
    """Figures of a server. It has a step time if its arrivals are its steps."""
    unit = step_unit(blocks)
    steps: Figures = {} if unit.of_tokens else {"step_ms": partial(step_ms, unit=unit)}
    return {"prefill_tok_s": prefill_tok_s, **steps}


def paired_figures(blocks: Sequence[Block], whole_requests: bool) -> Figures:
    """The metrics whose ratio between two runs can be taken block by block: medians of blocks, means over requests."""

    def mean_of(of: Callable[[TimedRequest], float | None]) -> Callable[[Block], float]:
        def mean(block: Block) -> float:
            times = [ms for request in requests_of(block, whole_requests) if (ms := of(request)) is not None]
            return statistics.fmean(times) if times else 0.0

        return mean

    figures = block_figures(blocks, whole_requests)
    if not blocks:
        return figures
    figures[per_request("mean", "tpot")] = mean_of(lambda request: request.tpot_ms)
    if whole_requests or any(b.served for b in blocks):
        figures[per_request("mean", "ttft")] = mean_of(lambda request: request.ttft_ms)
        figures[per_request("mean", "e2e")] = mean_of(lambda request: request.e2e_ms)
    return figures


def ms_per_step(phase: str, block: Block) -> float:
    """Milliseconds of a phase per step."""
    return block.phase_ns[phase] / len(block.step_ns) / 1e6


def ms_per_token(block: Block) -> float:
    """Decode milliseconds per token of one request, averaged over the block's requests."""
    return block.decoding_ns / 1e6 / block.emitted
