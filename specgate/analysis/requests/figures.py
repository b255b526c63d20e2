"""Figures of requests, and their distributions."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from specgate.analysis.requests.percentiles import ERROR, quantiles
from specgate.analysis.requests.timing import TimedRequest
from specgate.contract import Distribution, Value
from specgate.contract.metrics import PERCENTILES, per_request

Samples = Callable[[TimedRequest], Sequence[float]]
"""A request → its samples of one quantity, in ms."""


def present(value: float | None) -> list[float]:
    return [] if value is None else [value]


SAMPLES: Final[Mapping[str, Samples]] = {
    "ttft": lambda request: present(request.ttft_ms),
    "tpot": lambda request: present(request.tpot_ms),
    "itl": lambda request: request.itl_ms,
    "icl": lambda request: request.gaps_ms,
    "e2e": lambda request: present(request.e2e_ms),
}
"""Quantity of `contract.metrics.PER_REQUEST` → its samples."""


def request_values(blocks: Sequence[Sequence[TimedRequest]], error: float = ERROR) -> Iterator[Value]:
    """The figures of a cell. `blocks`: the requests of each of its blocks. A quantity without samples has none.

    `error`: the chance on each side that an interval of a percentile is wrong.
    """
    for quantity, samples in SAMPLES.items():
        groups = [[ms for request in block for ms in samples(request)] for block in blocks]
        flat = [ms for group in groups for ms in group]
        if not flat:
            continue
        yield Value(per_request("mean", quantity), statistics.fmean(flat), "mean", len(flat))
        estimates = quantiles(groups, [percent / 100 for percent in PERCENTILES], error)
        for percent, estimate in zip(PERCENTILES, estimates, strict=True):
            few = None if estimate.low is not None and estimate.high is not None else "few_samples"
            name = per_request(f"p{percent}", quantity)
            yield Value(name, estimate.value, f"p{percent}", estimate.samples, estimate.low, estimate.high, few)


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


def distribution(samples: Sequence[float]) -> Distribution:
    """At most `RANKS` order statistics of `samples` (ms), rounded to a tenth of a microsecond."""
    ordered = sorted(samples)
    n = len(ordered)
    count = min(n, RANKS)
    ranks = [round(i * (n - 1) / (count - 1)) for i in range(count)] if count > 1 else [0]
    return Distribution(n, tuple(round(ordered[rank], 4) for rank in ranks))
