"""A server's counters and clocks against its stream: steps against chunks, and what may lie before the first chunk.

A decode step hands over a request's new tokens at once. A server may put several steps into one chunk
(`stream_interval`, a busy front end, text that is kept back), and some send a chunk per token. So chunks that come
close together count as one, and what is left needs a step each, or more where it holds more than K + 1 tokens. A server
that counts fewer steps than that makes its acceptance length larger than it is.

Where every chunk is a single token, a step's chunks come one after the other, and a host short of CPU spreads them.
At an even pace the L chunks of a counted step would take L - 1 gaps: chunks within a third of that count as one, too.
A server that counts one step in place of f has at most f / 3 + 1 of its steps in that time, so it is still seen.

In a micro run the time before the first chunk is no decoding. So a spec server's first chunk comes about when the
baseline's does, and holds the tokens of one step at most beside prefill's. Where a server tells how long it decoded by
its own clock, that time fits into the client's, and nothing between the two slows down the baseline alone.

In the stored runs of vLLM 0.25.1 and SGLang 0.5.17 on H100 and H200 (docs/results, 456 blocks) every step came in a
chunk of its own, first chunks came 3 % to 5 % later than the baseline's at 16K and 32K and up to 9 ms at 1K, and the
two clocks differed by 0.4 % at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from specgate.contract import ENGINE_DECODE_NS, Block, ServedRequest
from specgate.contract.samples.counters import JOINED_OUTPUTS
from specgate.errors import InvalidResult

CLOSE: Final = 0.25
"""Chunks closer than this share of the mean gap are of one step, if a step can have emitted so many tokens."""
CLOSE_NS: Final = 500_000
"""So are chunks closer than this: a server writes the events of one step one after the other."""
SPREAD: Final = 1 / 3
"""So are single tokens within this share of the time that a counted step's would take at an even pace."""
UNSURE: Final = 0.02
"""Share of the counted steps, beside one step per request, by which chunks may exceed them: a step without a draft and
a cut one at the end cancel out in a server's counts.
"""
HIDDEN: Final = 0.10
"""Share of the decoding that may lie before the clock of decoding starts."""
PREFILL_SHARE: Final = 0.2
"""How much longer than the baseline's a spec prefill may take, for the draft's own."""
LATE_NS: Final = 5_000_000
ENGINE_SHARE: Final = 0.10
"""How much longer an engine's own clock may say that it decoded than its client saw chunks come."""
ENGINE_NS: Final = 10_000_000
"""Per request, beside that."""
PACED: Final = 1.25
"""How much more than spec's the baseline's chunks may be delayed on their way, as a factor of the engine's own time."""


def check_steps(blocks: Sequence[Block]) -> None:
    """Check that the spec blocks of a cell count as many steps, all together, as their chunks need. A client or server
    that waits for a CPU parts the chunks of a few steps. Raises InvalidResult with both figures.
    """
    counted = [
        (b, b.served.requests, b.served.acceptance.steps + (b.steps_without_draft or 0))
        for b in blocks
        if b.served is not None and b.served.acceptance is not None and not b.counters.get(JOINED_OUTPUTS)
    ]
    needed = sum(
        least_steps(request, b.role.k, b.emitted / max(own, 1)) for b, requests, own in counted for request in requests
    )
    steps = sum(steps for _, _, steps in counted)
    if needed > steps * (1 + UNSURE) + sum(len(requests) for _, requests, _ in counted):
        emitted, cell = sum(b.emitted for b, _, _ in counted), counted[0][0].cell
        chunks = sum(len(request.chunk_ns) - 1 for _, requests, _ in counted for request in requests)
        raise InvalidResult(
            f"{cell.key}: the server counts {steps} steps for {emitted} tokens, but its {chunks} chunks after the "
            f"first need {needed} at least: Σ ⌈tokens / (K + 1)⌉ over the chunks that came apart, with "
            f"K = {cell.role.k}; it emitted {emitted / needed:.3f} tokens per step at most, not "
            f"{emitted / max(steps, 1):.3f}"
        )


def least_steps(request: ServedRequest, k: int, length: float) -> int:
    """The fewest steps that can have emitted the tokens of a request after its first, with chunks close together taken
    as one. `length`: tokens per step by the server's own count.
    """
    first, *others = request.chunk_tokens
    gaps = [later - earlier for earlier, later in pairwise(request.chunk_ns)]
    mean = sum(gaps) / len(gaps) if gaps else 0.0
    close = max(CLOSE * mean, CLOSE_NS)
    spread = SPREAD * mean * (min(length, k + 1) - 1) if set(others) == {1} else 0.0
    needed, group, since = 0, first - 1, 0
    for tokens, gap in zip(others, gaps, strict=True):
        since += gap
        if (gap <= close or since <= spread) and group > 0 and group + tokens <= k + 1:
            group += tokens
        else:
            needed, group, since = needed - (-group // (k + 1)), tokens, 0
    return needed - (-group // (k + 1))


def check_first_chunks(pairs: Sequence[tuple[Block, Block]]) -> None:
    """Check the (baseline, spec) pairs of one cell of a micro run: no more decoding lies before spec's first chunks
    than may, in at least one of four pairs. Raises InvalidResult with both figures.
    """
    pairs = [(a, b) for a, b in pairs if a.served is not None and b.served is not None and b.emitted]
    if not pairs:
        return
    cell, count = pairs[0][1].cell.key, len(pairs)
    if lower_quartile([late_ns(a, b) for a, b in pairs]) > 0:
        base, spec = (sum(first_ns(pair[side]) for pair in pairs) / count / 1e6 for side in (0, 1))
        decoded = sum(decode_ns(b) for _, b in pairs) / count / 1e6
        raise InvalidResult(
            f"{cell}: the first tokens came after {spec:,.1f} ms on average, and the baseline's, of the same prompts, "
            f"after {base:,.1f} ms: {spec - base:,.1f} ms more, which is {(spec - base) / decoded:.0%} of the "
            f"{decoded:,.1f} ms of decoding that were timed (at most {HIDDEN:.0%}, or {PREFILL_SHARE:.0%} of the "
            "baseline's time, may be the draft's prefill, beside a step): decoding may lie before the first token"
        )
    if lower_quartile([early_tokens(b) - HIDDEN * b.emitted for _, b in pairs]) > 0:
        early, emitted = sum(early_tokens(b) for _, b in pairs), sum(b.emitted for _, b in pairs)
        raise InvalidResult(
            f"{cell}: {early} of {emitted} emitted tokens came with the first chunks, beside those of prefill and one "
            f"step: they were decoded before the time of decoding began (at most {HIDDEN:.0%})"
        )


def lower_quartile(values: Sequence[float]) -> float:
    """The value that three of four exceed."""
    return sorted(values)[(len(values) - 1) // 4]


def first_ns(block: Block) -> int:
    """The longest time to a first token, in nanoseconds."""
    assert block.served is not None
    return max(request.ttft_ns for request in block.served.requests)


def decode_ns(block: Block) -> float:
    """The mean time from a request's first token to its last."""
    return block.decoding_ns / len(block.tokens)


def late_ns(baseline: Block, spec: Block) -> float:
    """How much later than it may spec's first chunk came. A server may send it once the next drafts are made, which is
    part of a step.
    """
    assert spec.served is not None
    step = decode_ns(spec) / max(len(request.chunk_ns) for request in spec.served.requests)
    allowed = max(HIDDEN * decode_ns(spec), PREFILL_SHARE * first_ns(baseline)) + step + LATE_NS
    return first_ns(spec) - first_ns(baseline) - allowed


def early_tokens(block: Block) -> int:
    """Tokens in first chunks beyond prefill's and those of one step."""
    assert block.served is not None
    return sum(max(0, request.chunk_tokens[0] - 1 - (block.role.k + 1)) for request in block.served.requests)


def check_engine_clock(pairs: Sequence[tuple[Block, Block]]) -> None:
    """Check the clock of an engine behind a server, where it has one, against the client's over the (baseline, spec)
    pairs of one cell. Raises InvalidResult with both figures.
    """
    pairs = [(a, b) for a, b in pairs if all(x.served and x.counters.get(ENGINE_DECODE_NS) for x in (a, b))]
    if not pairs:
        return
    ratios = []
    for blocks in zip(*pairs, strict=True):
        client, engine = sum(b.decoding_ns for b in blocks), sum(b.counters[ENGINE_DECODE_NS] for b in blocks)
        slack = ENGINE_NS * sum(len(b.tokens) for b in blocks)
        if engine > client * (1 + ENGINE_SHARE) + slack:
            raise InvalidResult(
                f"{blocks[0].cell.key}: the engine's own clock counts {engine / 1e6:,.1f} ms of decoding, "
                f"but their chunks came within {client / 1e6:,.1f} ms: first chunks were held back"
            )
        ratios.append((client / engine, max(1.0, (client - slack) / engine)))
    (base, least), (spec, _) = ratios
    if least > PACED * max(spec, 1.0):
        raise InvalidResult(
            f"{pairs[0][1].cell.key}: the baseline's chunks took {base:.2f} times as long as its engine decoded by its "
            f"own clock, and spec's {spec:.2f} times (at most {PACED:g} times that): what slows it alone "
            "is not the engine"
        )
