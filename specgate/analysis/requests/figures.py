"""Mean and percentiles of TTFT, TPOT, ITL, ICL and E2E latency over the requests of a cell."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from specgate.analysis.requests.percentiles import ERROR, quantiles
from specgate.analysis.requests.timing import TimedRequest
from specgate.contract import Value
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
