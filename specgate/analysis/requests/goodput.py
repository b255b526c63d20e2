"""Count the requests that kept to the scenario's latency limits.

Misses come in clusters: the requests of a block wait for each other, and a slow state lasts for several blocks. So a
block is one sample, its share of requests that kept to the limits. A t-interval over few shares that are nearly all 1
is too narrow, since the block in which many requests miss may not have run yet. Each bound therefore counts one block
more: one that missed all for the lower bound, one that kept all for the upper one. Its standard error is multiplied by
the factor for neighbouring blocks that are alike, as in `percentiles`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from specgate.analysis.requests.percentiles import ERROR, MIN_GROUPS, Blocks, quantiles
from specgate.analysis.requests.timing import TimedRequest
from specgate.analysis.stats import ALPHA, t_quantile
from specgate.contract import LatencyLimits, Value

LOST: Final = 1e6
"""The share of its limits that a refused request is said to have used up."""


def goodput_values(
    blocks: Sequence[Sequence[TimedRequest]],
    seconds: float,
    limits: LatencyLimits,
    error: float = ERROR,
    refused: Sequence[int] = (),
) -> Iterator[Value]:
    """The share of the requests that kept to every limit, with an interval, how many of them there were a second, and
    the share of their limits that requests used up.

    `blocks`: the requests of each block of a cell. `seconds`: how long all blocks took together, each from sending its
    requests to the last token of all. `refused`: how many more requests of each block a server turned away, which kept
    to no limit. `error`: the chance on each side that the interval is wrong.
    """
    lost = refused or [0] * len(blocks)
    groups = [
        [used(request, limits) for request in block] + [math.inf] * more
        for block, more in zip(blocks, lost, strict=True)
    ]
    known = Blocks.of(groups)
    if known is None:
        return
    n, good = len(known.samples), int((known.samples <= 1).sum())
    (use,) = quantiles([[min(sample, LOST) for sample in group] for group in groups], [limits.share], ALPHA)
    few = "few_samples" if use.low is None or use.high is None else None
    yield Value("limit_use", use.value, f"p{100 * limits.share:g}", n, use.low, use.high, few)
    low, high = share_bounds(known, error) or (None, None)
    yield Value("goodput_share", good / n, "mean", n, low, high, "few_samples" if low is None else None)
    if seconds > 0:
        yield Value("goodput_req_s", good / seconds, "mean", n)


def limits_in_words(limits: LatencyLimits) -> str:
    """Return the limits as text."""
    stated = (("TTFT", limits.ttft_ms), ("TPOT", limits.tpot_ms), ("E2E latency", limits.e2e_ms))
    return ", ".join(f"{name} ≤ {ms:g} ms" for name, ms in stated if ms is not None)


def used(request: TimedRequest, limits: LatencyLimits) -> float:
    """The share of its limits that a request used up, by the limit that it came nearest to: above 1 it missed one.

    A request of a single token has no time per output token to keep to.
    """
    pairs = ((request.ttft_ms, limits.ttft_ms), (request.tpot_ms, limits.tpot_ms), (request.e2e_ms, limits.e2e_ms))
    return max((ms / limit for ms, limit in pairs if limit is not None and ms is not None), default=0.0)


def share_bounds(blocks: Blocks, error: float) -> tuple[float, float] | None:
    """The interval of the share of samples that are at most 1, with `error` on each side; None for too few blocks, or
    where it would hold every share.
    """
    count = len(blocks.sizes)
    if count < MIN_GROUPS:
        return None
    kept = blocks.samples <= 1
    above = blocks.counted(kept)
    shares = kept.mean() + above / blocks.sizes.mean()
    scale = t_quantile(1 - error, count) * blocks.factor(above) / math.sqrt(count + 1)
    missed, whole = (np.append(shares, one_more) for one_more in (0.0, 1.0))
    low, high = missed.mean() - scale * missed.std(ddof=1), whole.mean() + scale * whole.std(ddof=1)
    return (max(0.0, float(low)), min(1.0, float(high))) if low > 0 or high < 1 else None
