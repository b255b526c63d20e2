"""The distributions of the times of single requests in a cell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from specgate.core import Block, Distribution

RANKS: Final = 64
"""Order statistics kept per distribution: enough to draw it, and small enough for run.json."""


def distributions(blocks: Sequence[Block], *, whole_requests: bool) -> dict[str, Distribution]:
    """`tpot_ms` of every request, and `ttft_ms` where whole requests were measured. A metric without samples has no
    entry.

    The requests of a block are prefilled together, so their first tokens come at the same time. The requests of a
    server each have their own clock.
    """
    samples = {"tpot_ms": [ms for block in blocks for ms in request_tpot_ms(block)]}
    served = [request for block in blocks if block.served is not None for request in block.served.requests]
    if served:
        samples["ttft_ms"] = [request.ttft_ns / 1e6 for request in served]
    elif whole_requests:
        samples["ttft_ms"] = [block.prefill_ns / 1e6 for block in blocks for _ in block.tokens]
    return {name: distribution(found) for name, found in samples.items() if found}


def request_tpot_ms(block: Block) -> Iterator[float]:
    """Per request that emitted: the decode time up to its last step, in ms per token after the prefill token.

    The decode run's time is split over its steps in proportion to the step times.
    """
    if block.served is not None:
        for request, tokens in zip(block.served.requests, block.tokens, strict=True):
            if len(tokens) > 1:
                yield (request.e2e_ns - request.ttft_ns) / (len(tokens) - 1) / 1e6
        return
    in_steps = sum(block.step_ns)
    for slot, tokens in enumerate(block.tokens):
        active = [ns for ns, row in zip(block.step_ns, block.accepted, strict=True) if row[slot] >= 0]
        if len(tokens) > 1 and in_steps:
            yield block.elapsed_ns * (sum(active) / in_steps) / (len(tokens) - 1) / 1e6


def distribution(samples: Sequence[float]) -> Distribution:
    """At most `RANKS` order statistics of `samples` (ms), rounded to a tenth of a microsecond."""
    ordered = sorted(samples)
    n = len(ordered)
    kept = min(n, RANKS)
    ranks = [round(i * (n - 1) / (kept - 1)) for i in range(kept)] if kept > 1 else [0]
    return Distribution(n, tuple(round(ordered[rank], 4) for rank in ranks))
