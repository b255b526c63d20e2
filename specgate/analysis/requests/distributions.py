"""The distributions of the times of single requests in a cell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from specgate.analysis.requests.figures import SAMPLES
from specgate.analysis.requests.timing import TimedRequest, requests_of
from specgate.contract import Block, Distribution

RANKS: Final = 64
"""Order statistics kept per distribution: enough to draw it, and small enough for run.json."""


def distributions(requests: Iterable[TimedRequest]) -> dict[str, Distribution]:
    """`tpot_ms` of every request, `ttft_ms` where whole requests were measured, and `itl_ms` of every output token. A
    quantity without samples has no entry.

    The requests of a block are prefilled together, so their first tokens come at the same time. The requests of a
    server each have their own clock.
    """
    requests = list(requests)
    samples = {f"{q}_ms": [ms for request in requests for ms in SAMPLES[q](request)] for q in ("tpot", "ttft", "itl")}
    return {name: distribution(values) for name, values in samples.items() if values}


def request_tpot_ms(block: Block) -> Iterator[float]:
    """Per request that emitted: the decode time up to its last step, in ms per token after the prefill token."""
    yield from (ms for request in requests_of(block, False) if (ms := request.tpot_ms) is not None)


def distribution(samples: Sequence[float]) -> Distribution:
    """At most `RANKS` order statistics of `samples` (ms), rounded to a tenth of a microsecond."""
    ordered = sorted(samples)
    n = len(ordered)
    count = min(n, RANKS)
    ranks = [round(i * (n - 1) / (count - 1)) for i in range(count)] if count > 1 else [0]
    return Distribution(n, tuple(round(ordered[rank], 4) for rank in ranks))
