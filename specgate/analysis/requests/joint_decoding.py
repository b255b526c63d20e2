"""The part of a batch's decoding in which every request decodes.

A server answers the first request of a batch while the prompts of the others still wait to be prefilled. From its first
token to its last, a request so waits for the prefill of others, which is the same work in every role: speculation looks
smaller than it is, and an engine that prefills a batch before it decodes looks faster. What lies between the last
request's first token and the first one's last token has decoding alone in it.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from specgate.contract import Block, Scenario, ServedRequest

LEAST_ARRIVALS: Final = 8
"""Arrivals after the first that every request of a server needs in the joint part: of fewer, one late one decides."""
NO_JOINT_DECODING: Final = "no_joint_decoding"
"""Reason code: a block has too short a time, or none, in which all its requests decode."""


@dataclass(frozen=True, slots=True)
class JointDecoding:
    """One block's joint part. `tokens[slot]` came in `arrivals[slot]` within `ns[slot]`, which lasts from an arrival of
    the slot to its last one: no gap is cut in two.
    """

    tokens: tuple[int, ...]
    arrivals: tuple[int, ...]
    ns: tuple[float, ...]
    decoded: int

    @property
    def tok_s(self) -> float:
        """Tokens per second of all requests together."""
        return sum(tokens / ns for tokens, ns in zip(self.tokens, self.ns, strict=True)) * 1e9

    @property
    def tpot_ms(self) -> float:
        """Milliseconds per token of a request, the mean over requests."""
        return statistics.fmean(ns / tokens for tokens, ns in zip(self.tokens, self.ns, strict=True)) / 1e6

    @property
    def share(self) -> float:
        """The share of the block's decoded tokens that lies in the joint part."""
        return sum(self.tokens) / self.decoded


def judged_jointly(scenario: Scenario, block: Block) -> bool:
    """True if the speed of this block is that of its joint part: a server's batch in a micro run."""
    return block.served is not None and decodes_in_company(block, scenario.whole_requests)


def decodes_in_company(block: Block, whole_requests: bool) -> bool:
    """True if a run has figures of the joint decoding of this block: those of a batch in a micro run."""
    return not whole_requests and len(block.tokens) > 1


def joint_decoding(block: Block) -> JointDecoding | None:
    """The joint part of a block; None where it has none, or where a request of a server has fewer than `LEAST_ARRIVALS`
    arrivals in it.
    """
    slots = list(served_slots(block) if block.served is not None else stepping_slots(block))
    if not slots or any(slot is None for slot in slots):
        return None
    whole = [slot for slot in slots if slot is not None]
    tokens, arrivals, ns = zip(*whole, strict=True)
    return JointDecoding(tokens, arrivals, ns, block.emitted)


def served_slots(block: Block) -> Iterator[tuple[int, int, float] | None]:
    """(tokens, arrivals, ns) of each request of a server's block."""
    assert block.served is not None
    requests = block.served.requests
    begin, end = max(r.chunk_ns[0] for r in requests), min(r.chunk_ns[-1] for r in requests)
    return (within(request, begin, end) for request in requests)


def within(request: ServedRequest, begin: int, end: int) -> tuple[int, int, float] | None:
    """The tokens and arrivals after the request's first arrival from `begin` on, until its last one by `end`, and the
    time between the two.
    """
    times = request.chunk_ns
    first, behind = bisect_left(times, begin), bisect_right(times, end)
    if behind - first - 1 < LEAST_ARRIVALS:
        return None
    together = bisect_right(times, times[first])
    ns = times[behind - 1] - times[first]
    return (sum(request.chunk_tokens[together:behind]), behind - together, float(ns)) if ns else None


def stepping_slots(block: Block) -> Iterator[tuple[int, int, float] | None]:
    """(tokens, steps, ns) of each slot of an engine whose steps are known: until the first slot ends.

    As in `of_steps` of `timing`, the decode run's time is split over its steps in proportion to the step times.
    """
    steps = next((n for n, row in enumerate(block.accepted) if min(row) < 0), len(block.accepted))
    if not steps or not sum(block.step_ns):
        return
    ns = block.elapsed_ns * (sum(block.step_ns[:steps]) / sum(block.step_ns))
    for slot, text in enumerate(block.tokens):
        tokens = sum(row[slot] + 1 for row in block.accepted[:steps])
        yield min(tokens, len(text) - 1), steps, ns
