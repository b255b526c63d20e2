"""Count the requests that kept to the scenario's latency limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specgate.analysis.requests.percentiles import ERROR, effective_number
from specgate.analysis.requests.timing import TimedRequest
from specgate.contract import LatencyLimits, Value


def goodput_values(
    blocks: Sequence[Sequence[TimedRequest]],
    seconds: float,
    limits: LatencyLimits,
    error: float = ERROR,
    refused: Sequence[int] = (),
) -> Iterator[Value]:
    """The share of the requests that kept to every limit, with an interval, and how many of them there were a second.

    `blocks`: the requests of each block of a cell. `seconds`: how long all blocks took together, each from sending its
    requests to the last token of all. `refused`: how many more requests of each block a server turned away, which kept
    to no limit.

    The interval is Clopper and Pearson's for a binomial share (Biometrika 26, 1934), for as many independent requests
    as the requests of a block, which wait for each other, are worth. `error`: its chance on each side to be wrong.
    """
    import numpy as np

    lost = refused or [0] * len(blocks)
    missed = [
        [0.0 if keeps(request, limits) else 1.0 for request in block] + [1.0] * more
        for block, more in zip(blocks, lost, strict=True)
    ]
    groups = [block for block in missed if block]
    n, good = sum(map(len, groups)), sum(group.count(0.0) for group in groups)
    if not n:
        return
    share = good / n
    # Where all requests did the same, nothing shows how alike those of a block are: a block then counts once.
    sizes = np.array([len(group) for group in groups], float)
    worth = effective_number(np.concatenate(groups), sizes, 0.0, share, error) if 0 < good < n else len(groups)
    low, high = share_interval(share * worth, worth, error) if worth else (None, None)
    yield Value("goodput_share", share, "mean", n, low, high, None if worth else "few_samples")
    if seconds > 0:
        yield Value("goodput_req_s", good / seconds, "mean", n)


def keeps(request: TimedRequest, limits: LatencyLimits) -> bool:
    """True if a request kept to every limit. One of a single token has no time per output token to keep to."""
    pairs = (
        (request.ttft_ms, limits.ttft_ms),
        (request.tpot_ms, limits.tpot_ms),
        (request.e2e_ms, limits.e2e_ms),
    )
    return all(limit is None or ms is None or ms <= limit for ms, limit in pairs)


def share_interval(good: float, n: int, error: float) -> tuple[float, float]:
    """Clopper and Pearson's interval of a share, of which `good` of `n` were seen; `good` need not be whole."""
    from scipy.special import betaincinv

    low = float(betaincinv(good, n - good + 1, error)) if good > 0 else 0.0
    high = float(betaincinv(good + 1, n - good, 1 - error)) if good < n else 1.0
    return low, high
