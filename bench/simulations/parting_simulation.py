"""Error rate and power of the gate `tokens`: engines that only round, and engines that accept near misses.

    python -m bench.simulations.parting_simulation --cells 20000

The gap between two tokens has some true value at every place, and all values are equally frequent around 0. Plain
decoding, verification and the request that asks for the gap each see it with an error of their own, on the grid of the
logits. A text parts where the first two choose differently. Errors are normal; with a spread, their size differs from
place to place by a log-normal factor. An engine that accepts near misses takes a draft wherever verification sees it at
most so far below the best. Where logits straddle a power of two, gaps may be counted in units half as large as their
own.

`tests/gates/tokens/test_near_ties.py` holds the vectorised rules used here to the ones that judge.
"""

from __future__ import annotations

from dataclasses import dataclass

import click
import numpy as np
from numpy.typing import NDArray

from specgate.analysis.stats import t_quantile
from specgate.analysis.tokens.partings import CONFIDENCE
from specgate.contract import NearTies

Floats = NDArray[np.float64]
Marks = NDArray[np.bool_]
TIES, MEAN = NearTies(ulps=4, rare_ulps=8), 1.5
"""The bounds of the shipped policies, and the outer one that a policy may add."""
WIDEST = 20.0
"""Beyond so many units no error that is simulated here makes a text part."""


@dataclass(frozen=True, slots=True)
class Engine:
    """`error`: of a gap in one pass, in units in the last place. `spread`: of the logarithm of that from place to
    place. `accepts`: how far below the best a draft may lie that is accepted; 0 of an engine that is right.
    `straddles`: the share of the places whose gap is counted double.
    """

    name: str
    error: float
    spread: float = 0.0
    accepts: float = 0.0
    straddles: float = 0.0


ENGINES = (
    Engine("rounds, 1.0", 1.0),
    Engine("rounds, 1.2", 1.2),
    Engine("rounds, 0.9 ± 40 %", 0.9, 0.4),
    Engine("rounds, 1.4", 1.4),
    Engine("rounds, 1.0, half counted double", 1.0, straddles=0.5),
    Engine("rounds, 1.0, all counted double", 1.0, straddles=1.0),
    Engine("accepts within 3", 1.0, accepts=3),
    Engine("accepts within 4", 1.0, accepts=4),
    Engine("accepts within 8", 1.0, accepts=8),
)


def gaps_where_texts_part(engine: Engine, source: np.random.Generator, places: int = 2_000_000) -> Floats:
    """Simulate the rescored gaps, in units, at the divergences among `places` places."""
    true = source.uniform(-WIDEST, WIDEST, places)
    size = engine.error * np.exp(engine.spread * source.standard_normal(places))
    plain, verified, rescored = (np.round(true + size * source.standard_normal(places)) for _ in range(3))
    if engine.accepts:
        parts = (np.abs(verified) <= engine.accepts) & (source.random(places) < 0.5)
    else:
        lower_id = np.where(source.random(places) < 0.5, 0.25, -0.25)  # which of the two a tie goes to
        parts = np.sign(plain + lower_id) != np.sign(verified + lower_id)
    gaps = np.abs(rescored[parts])
    return np.where(source.random(len(gaps)) < engine.straddles, 2 * gaps, gaps)


def too_far(gaps: Floats, ties: NearTies) -> Marks:
    """Cells with a place beyond the bounds. `gaps`: [cells, places]."""
    furthest: Marks = gaps.max(1) > max(ties.ulps, ties.rare_ulps)
    many: Marks = (gaps > ties.ulps).sum(1) > ties.allowed_rare(gaps.shape[1])
    return furthest | many


def too_wide(gaps: Floats, most: float) -> Marks:
    """Cells whose mean gap surely lies above `most`, with the surplus of even gaps halved."""
    places = gaps.shape[1]
    even = np.round(gaps) % 2 == 0
    surplus = np.maximum(0, 2 * even.sum(1) - places)
    ordered = -np.sort(-np.where(even, gaps, -1.0), axis=1)  # the even ones from the largest on, then the odd ones' −1
    halved = np.where(np.arange(places) < surplus[:, None], ordered / 2, ordered)
    gaps = np.concatenate([np.where(ordered >= 0, halved, 0.0), np.where(even, 0.0, gaps)], axis=1)
    mean = gaps.sum(1) / places
    # Each place is 0 in one of the two halves, so these zeros have to be taken out of the spread.
    error = np.sqrt(((gaps**2).sum(1) - places * mean**2) / (places - 1) / places)
    wide: Marks = mean - t_quantile(CONFIDENCE, places - 1) * error > most
    return wide


@click.command()
@click.option("--cells", default=20_000, show_default=True)
@click.option("--seed", default=0, show_default=True)
def main(cells: int, seed: int) -> None:
    """Print the share of cells that are called wrong, in percent: 4 units alone; with rare ties; with the mean, too."""
    source = np.random.default_rng(seed)
    click.echo("engine\tmean gap\tplaces\t4 units\t8, rarely\tand the mean")
    for engine in ENGINES:
        pool = gaps_where_texts_part(engine, source)
        for places in (10, 50, 100):
            gaps = source.choice(pool, (cells, places))
            rarely = too_far(gaps, TIES)
            shares = (too_far(gaps, NearTies(ulps=TIES.ulps)), rarely, rarely | too_wide(gaps, MEAN))
            columns = "\t".join(f"{share.mean():.2%}" for share in shares)
            click.echo(f"{engine.name}\t{pool.mean():.2f}\t{places}\t{columns}")


if __name__ == "__main__":
    main()
