"""A block → its requests, each on its own clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from specgate.contract import Block, ServedRequest


@dataclass(frozen=True, slots=True)
class TimedRequest:
    """One request as its client sees it. An *arrival* is what reaches the client at one time: the tokens of an engine
    step, or of a chunk of a server's answer.

    `ttft_ns`: from sending the request to its first token. None in a micro run of an engine in the harness's process,
        where several blocks share one prefill.
    `decode_ns`: from the first token to the last, which is E2E latency less TTFT; None where no step has a time.
    `tokens`: output tokens, the first included.
    `gaps_ms`: before each arrival after the first, in milliseconds.
    `counts`: the tokens of each of these arrivals.
    """

    ttft_ns: float | None
    decode_ns: float | None
    tokens: int
    gaps_ms: Sequence[float]
    counts: Sequence[int]

    @property
    def ttft_ms(self) -> float | None:
        """Time to first token, in milliseconds."""
        return None if self.ttft_ns is None else self.ttft_ns / 1e6

    @property
    def e2e_ms(self) -> float | None:
        """From sending the request to its last token, in milliseconds."""
        return None if self.ttft_ns is None or self.decode_ns is None else (self.ttft_ns + self.decode_ns) / 1e6

    @property
    def tpot_ms(self) -> float | None:
        """(E2E latency − TTFT) / (tokens − 1), in milliseconds; None for a single token."""
        return None if self.decode_ns is None or self.tokens < 2 else self.decode_ns / (self.tokens - 1) / 1e6

    @property
    def itl_ms(self) -> list[float]:
        """The gap before each output token after the first arrival. Tokens that arrive together share the gap before
        them evenly.
        """
        return [gap / count for gap, count in zip(self.gaps_ms, self.counts, strict=True) for _ in range(count)]


def requests_of(block: Block, whole_requests: bool) -> Iterator[TimedRequest]:
    """The requests of a block, slot by slot. `whole_requests`: its prefill is its own."""
    if block.served is not None:
        for served, tokens in zip(block.served.requests, block.tokens, strict=True):
            yield of_server(served, len(tokens))
    else:
        for slot in range(len(block.tokens)):
            yield of_steps(block, slot, whole_requests)


def of_server(request: ServedRequest, tokens: int) -> TimedRequest:
    """A request to a server."""
    gaps = [(later - earlier) / 1e6 for earlier, later in pairwise(request.chunk_ns)]
    return TimedRequest(request.ttft_ns, request.e2e_ns - request.ttft_ns, tokens, gaps, request.chunk_tokens[1:])


def of_steps(block: Block, slot: int, whole_requests: bool) -> TimedRequest:
    """The request in one slot of an engine whose steps are known. It is over after the last step of its slot.

    The decode run's time is split over its steps in proportion to the step times. What was cut off at the end of a
    request is of its last step.
    """
    ttft = block.prefill_ns if whole_requests else None
    tokens, in_steps = len(block.tokens[slot]), sum(block.step_ns)
    if not in_steps:
        return TimedRequest(ttft, None, tokens, (), ())
    active = [(ns, row[slot]) for ns, row in zip(block.step_ns, block.accepted, strict=True) if row[slot] >= 0]
    counts = [accepted + 1 for _, accepted in active]
    if counts:
        counts[-1] -= block.truncated[slot]
    per_ns = block.elapsed_ns / in_steps / 1e6
    decode = block.elapsed_ns * (sum(ns for ns, _ in active) / in_steps)
    return TimedRequest(ttft, decode, tokens, [ns * per_ns for ns, _ in active], counts)
