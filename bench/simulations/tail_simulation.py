"""Error rates of goodput and of percentiles, on simulated requests whose blocks are alike.

    python -m bench.simulations.tail_simulation --runs 2000

A sample is the share of a limit that one request used up. The true share of samples below 1 is known, so that a lower
bound of goodput above it is a false PASS at that share, and an upper bound below it a false FAIL; percentiles likewise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

import click
import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from specgate.analysis.requests.goodput import share_bounds
from specgate.analysis.requests.percentiles import Blocks, quantiles

Draw = np.random.Generator
Floats = NDArray[np.float64]
REQUESTS = 32
"""Of one block."""
BLOCKS = (32, 128)

# ── samples ──────────────────────────────────────────────────────────────────────────────────────────────────────────
# Each kind gives ranks of samples among all that ever were, between 0 and 1: float64 [blocks, REQUESTS].


def normal(within: float, rho: float, share: float, blocks: int, noise: Draw) -> Floats:
    """`within`: the share of the variance that the requests of a block share; `rho`: of neighbouring blocks."""
    common = noise.normal(size=blocks)
    for i in range(1, blocks):
        common[i] = rho * common[i - 1] + math.sqrt(1 - rho * rho) * common[i]
    own = noise.normal(size=(blocks, REQUESTS))
    ranks: Floats = ndtr(math.sqrt(within) * common[:, None] + math.sqrt(1 - within) * own)
    return ranks


def clustered(icc: float, share: float, blocks: int, noise: Draw) -> Floats:
    """Each block keeps its own share (beta-distributed), with this correlation within a block."""
    size = 1 / icc - 1
    kept = noise.random((blocks, REQUESTS)) < noise.beta(share * size, (1 - share) * size, (blocks, 1))
    return np.where(kept, share * noise.random(kept.shape), share + (1 - share) * noise.random(kept.shape))


def slow_blocks(often: float, share: float, blocks: int, noise: Draw) -> Floats:
    """This share of blocks lies wholly in the upper tail, beyond 1 − `often`."""
    slow = noise.random((blocks, 1)) < often
    u = noise.random((blocks, REQUESTS))
    return np.where(slow, 1 - often + often * u, (1 - often) * u)


Make = Callable[[float, int, Draw], Floats]
KINDS: Mapping[str, Make] = {
    "independent": lambda share, blocks, noise: noise.random((blocks, REQUESTS)),
    "icc 0.1": partial(clustered, 0.1),
    "icc 0.5": partial(clustered, 0.5),
    "one block in 20 slow": partial(slow_blocks, 0.05),
    **{
        f"AR(1) {rho}, {within:.0%} of the variance common": partial(normal, within, rho)
        for rho in (0.5, 0.9)
        for within in (0.1, 0.5, 1.0)
    },
}


Rates = tuple[float, float, float]


def goodput_rates(make: Make, share: float, blocks: int, runs: int, noise: Draw, error: float) -> Rates:
    """(false PASS %, false FAIL %, median lower bound)."""
    ends = []
    for _ in range(runs):
        known = Blocks.of((make(share, blocks, noise) / share).tolist())
        assert known is not None
        ends.append(share_bounds(known, error) or (0.0, 1.0))
    low, high = np.array(ends).T
    return 100 * float((low > share).mean()), 100 * float((high < share).mean()), float(np.median(low))


def percentile_rates(make: Make, q: float, blocks: int, runs: int, noise: Draw, error: float) -> Rates:
    """(upper bound too low %, lower bound too high %, without an upper bound %)."""
    low = high = none = 0
    for _ in range(runs):
        made = next(quantiles(make(q, blocks, noise).tolist(), [q], error))
        none += made.high is None
        high += made.high is not None and made.high < q
        low += made.low is not None and made.low > q
    return 100 * high / runs, 100 * low / runs, 100 * none / runs


@click.command()
@click.option("--runs", default=2000, show_default=True)
@click.option("--seed", default=5, show_default=True)
@click.option("--error", default=0.0035, show_default=True)
def main(runs: int, seed: int, error: float) -> None:
    """Print a table for goodput and one for percentiles: a row per kind of cluster, a column per share and size."""
    noise = np.random.default_rng(seed)
    tables = (
        ("goodput: false PASS / false FAIL %, median lower bound", goodput_rates, (0.8, 0.95), ".3f"),
        (
            "percentiles: upper bound too low / lower too high / no upper bound %",
            percentile_rates,
            (0.5, 0.9, 0.99),
            ".0f",
        ),
    )
    for title, rates, shares, form in tables:
        shapes = [(share, blocks) for share in shares for blocks in BLOCKS]
        heads = " | ".join(f"{share:g}, {blocks} blocks" for share, blocks in shapes)
        print(f"{title}\n\n| blocks | {heads} |\n|{'---|' * (len(shapes) + 1)}")
        for name, make in KINDS.items():
            cells = [rates(make, share, blocks, runs, noise, error) for share, blocks in shapes]
            print(f"| {name} | {' | '.join(f'{a:.2f} / {b:.2f} / {c:{form}}' for a, b, c in cells)} |", flush=True)


if __name__ == "__main__":
    main()
