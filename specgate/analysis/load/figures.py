"""Figures of a server at one level of load. docs/server.md has the definitions.

A block lasts from the first sending to the last token of all, so the ramp at its beginning and the drain at its end,
when fewer requests are left than clients, count. That is the duration by which `vllm bench serve` (0.25.1,
`benchmark_duration`) divides, too.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from specgate.analysis.load.sweeps import lag_values
from specgate.analysis.paired_blocks import speed
from specgate.contract import Block, Served, Value


def load_values(blocks: Sequence[Block]) -> Iterator[Value]:
    """The figures of one cell of a load scenario beside the times of its requests; nothing without blocks.

    Speeds are medians over blocks, as in other runs. Requests in flight follow from Little's law: the mean number in
    flight is the sum of the times that requests took, over the time of the block.
    """
    live = [(block, block.served) for block in blocks if block.served is not None]
    if not live:
        return
    tokens = [speed(block, whole_requests=True) for block, _ in live]
    yield Value("output_tok_s", statistics.median(tokens), "p50", len(live))
    per_user = [tok_s / clients_of(block) for tok_s, (block, _) in zip(tokens, live, strict=True)]
    yield Value("output_tok_s_per_user", statistics.median(per_user), "p50", len(live))
    requests = [len(served.requests) / seconds(block) for block, served in live]
    yield Value("throughput_req_s", statistics.median(requests), "p50", len(live))
    in_flight = [in_flight_ns(served) / 1e9 / seconds(block) for block, served in live]
    yield Value("in_flight_avg", statistics.fmean(in_flight), "mean", len(live))
    sent = sum(len(served.requests) + len(served.refused) for _, served in live)
    yield Value("refused_requests", float(sum(len(served.refused) for _, served in live)), "count", sent)
    yield from lag_values([served for _, served in live])


def seconds(block: Block) -> float:
    """From the beginning of a block to the last token of all its requests."""
    return (block.prefill_ns + block.elapsed_ns) / 1e9


def in_flight_ns(served: Served) -> int:
    """The times of all requests together, each from its sending to its last token."""
    return sum(r.chunk_ns[-1] - r.sent_ns for r in served.requests)


def clients_of(block: Block) -> float:
    """Number of users that share the output of a block: its clients, or in an open loop the mean requests in flight."""
    if block.point.rate is None:
        return min(block.point.batch, len(block.tokens))
    assert block.served is not None
    return in_flight_ns(block.served) / 1e9 / seconds(block)
