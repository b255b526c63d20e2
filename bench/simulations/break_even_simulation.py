"""How often the 95 % interval of a break-even holds the true one, on simulated sweeps.

    python -m bench.simulations.break_even_simulation --runs 1000

The log-ratio falls by 0.12 per doubling of the load where it crosses 0, in the middle between two levels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import click
import numpy as np

from specgate.analysis.load.break_even import Level, break_even_of
from specgate.contract import BetweenRuns

SLOPE = 0.12
PAIRS = 8
"""Of one level."""
SHAPES: Mapping[str, Callable[[float], float]] = {
    "a line": lambda x: -SLOPE * x,
    "bends down, −0.03 per doubling²": lambda x: -SLOPE * x - 0.03 * x * x,
    "bends up, +0.03 per doubling²": lambda x: -SLOPE * x + 0.03 * x * x,
    "a kink at the next level": lambda x: -SLOPE * x - 0.1 * max(0.0, x - 0.5),
    "a kink between the two levels": lambda x: -SLOPE / 2 * x - SLOPE * max(0.0, x + 0.2) + 0.2 * SLOPE,
    "a sigmoid": lambda x: -4 * SLOPE * (1 / (1 + math.exp(-x)) - 0.5),
}
"""Doublings of the load beyond the break-even → log-ratio."""
SWEEPS: Mapping[str, tuple[int, float]] = {
    "2 levels": (2, 0.5),
    "3 levels": (3, 1.5),
    "4 levels": (4, 1.5),
    "6 levels": (6, 2.5),
}
"""Name → (levels that double from 1 on, log2 of the true break-even)."""


Shape = Callable[[float], float]
Draw = np.random.Generator


def misses(shape: Shape, levels: int, root: float, sd: float, runs: int, noise: Draw) -> tuple[float, float, float]:
    """(% of intervals below the break-even, % above it, median error of the estimate in doublings)."""
    below = above = 0
    errors = []
    for _ in range(runs):
        known = []
        for i in range(levels):
            pairs = shape(i - root) + sd * noise.normal(size=PAIRS)
            spread = float(pairs.std(ddof=1)) / math.sqrt(PAIRS)
            known.append(Level(2.0**i, float(pairs.mean()), spread, PAIRS - 1, BetweenRuns(0.0, None)))
        made = break_even_of(known)
        below += made.outcome == "nowhere" or (made.high is not None and made.high < 2**root)
        above += made.outcome == "everywhere" or (made.low is not None and made.low > 2**root)
        errors += [math.log2(made.value) - root] if made.value is not None else []
    return 100 * below / runs, 100 * above / runs, float(np.median(errors)) + 0.0


@click.command()
@click.option("--runs", default=1000, show_default=True)
@click.option("--seed", default=3, show_default=True)
@click.option("--sd", default=0.01, show_default=True, help="Of a pair.")
def main(runs: int, seed: int, sd: float) -> None:
    """Print a table: a row per shape of the ratio, a column per number of levels."""
    noise = np.random.default_rng(seed)
    print(f"intervals below / above the break-even %, error in doublings\n\n| ratio | {' | '.join(SWEEPS)} |")
    print(f"|{'---|' * (len(SWEEPS) + 1)}")
    for name, shape in SHAPES.items():
        cells = [misses(shape, levels, root, sd, runs, noise) for levels, root in SWEEPS.values()]
        print(f"| {name} | {' | '.join(f'{a:.1f} / {b:.1f}, {e:+.2f}' for a, b, e in cells)} |", flush=True)


if __name__ == "__main__":
    main()
