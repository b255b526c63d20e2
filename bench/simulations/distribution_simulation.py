"""Error rate and power of the gate `distribution`.

    python -m bench.simulations.distribution_simulation --runs 1000000
    python -m bench.simulations.distribution_simulation --table power

False alarms: tables of counts are drawn from the law that they are tested against, and the share of them whose chance
is said to be below a level is counted: by either statistic, and by both, as the gate does it.

Power: texts of small chains are drawn with verifies that have known faults, and judged as the gate judges them.

`tests/analysis/draws/test_goodness.py` holds the vectorised statistics used here to the ones that judge.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import click
import numpy as np
from numpy.typing import NDArray
from scipy import special

from specgate.analysis.draws.fit_tests import check_draws, often_drawn
from specgate.analysis.draws.goodness_of_fit import LEAST_EXPECTED, against_law, pools
from specgate.contract import BASELINE, Role
from specgate.contract.draws import DrawnTexts, TokenLaw
from specgate.sampling.keys import Keys
from specgate.sampling.rejection import verify_by_rejection
from tests.sampling import acceptance
from tests.sampling.small_chains import FAULTS, Verify, by_coupling, plain_texts, speculative_texts

Floats = NDArray[np.float64]

ALPHA = 1e-6
LEVELS = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7)
CHUNK = 100_000
SPEC = Role(3)
DRAWS = (1_000, 3_000, 20_000)
VOCABULARY = 64
SHARES = (0.5, 0.9, 0.99)
"""How much of a draft's row is the target's own."""


def zipf(tokens: int) -> Floats:
    weights = 1 / np.arange(1, tokens + 1)
    shares: Floats = weights / weights.sum()
    return shares


LAWS = {
    f"20 bins that expect {LEAST_EXPECTED:g} draws each": (np.full(20, 1 / 20), int(20 * LEAST_EXPECTED)),
    "2 bins, one expects 10 of 20,000": (np.array([1 - 10 / 20_000, 10 / 20_000]), 20_000),
    "Zipf over 50,000 tokens, 2,000 draws": (zipf(50_000), 2_000),
    "one token has 0.9, Zipf the rest, 20,000 draws": (np.array([0.9, *0.1 * zipf(999)]), 20_000),
}


def pooled(law: Floats, draws: int) -> Floats:
    """The probabilities of the pools that `against_law` makes."""
    return np.array([law[group].sum() for group in pools(draws * law)])


def chances(counts: Floats, shares: Floats, draws: int) -> tuple[Floats, Floats]:
    """(p by chi-square, p by G) of each row of `counts` float64 [R, bins], as `Fit` has them."""
    expected, bins = draws * shares, len(shares)
    empty = against_law([draws, *[0] * (bins - 1)], shares.tolist())
    williams = 1 + ((1 / shares).sum() - 1) / (6 * draws * (bins - 1))
    chi_square = ((counts - expected) ** 2 / expected).sum(axis=1)
    g = 2 * special.xlogy(counts, counts / expected).sum(axis=1) / williams
    half, scale = empty.mean**2 / empty.variance, empty.mean / empty.variance
    return special.gammaincc(half, chi_square * scale), special.chdtrc(bins - 1, g)


def false_alarms(runs: int, seed: int) -> Iterator[str]:
    source = np.random.default_rng(seed)
    yield f"share of {runs:,} tables whose chance is said to be below a level"
    yield f"{'law':<56}{'':>5}" + "".join(f"{level:>10.0e}" for level in LEVELS)
    for name, (law, draws) in LAWS.items():
        shares, below = pooled(law, draws), np.zeros((3, len(LEVELS)))
        for start in range(0, runs, CHUNK):
            counts = source.multinomial(draws, shares, min(CHUNK, runs - start)).astype(float)
            either = chances(counts, shares, draws)
            for row, p in enumerate((*either, np.maximum(*either))):
                below[row] += [(p < level).sum() for level in LEVELS]
        for row, statistic in enumerate(("χ²", "G", "both")):
            columns = "".join(f"{count / runs:>10.1e}" for count in below[row])
            yield f"{name + f' ({len(shares)} bins)':<56}{statistic:>5}{columns}"


def chain(source: np.random.Generator, share: float) -> tuple[Floats, Floats]:
    """Rows that fall off as those of text do, each in an order of its own; and a draft that has `share` of them."""
    falling = zipf(VOCABULARY) ** 1.5
    rows = [np.stack([source.permutation(falling / falling.sum()) for _ in range(VOCABULARY)]) for _ in range(2)]
    return rows[0], share * rows[0] + (1 - share) * rows[1]


def rejected(target: Floats, draft: Floats, verify: Verify, draws: int, seed: int, *, laws: bool) -> bool:
    """Return whether the gate rejects so many texts of a verify."""
    requests = np.arange(draws, dtype=np.uint64)
    begin = np.zeros(draws, np.int64)
    spec, _ = speculative_texts(target, draft, 0, 4, Keys(2 * seed, requests, begin), SPEC.k, verify)
    plain = plain_texts(target, 0, 4, Keys(2 * seed + 1, requests, begin))
    texts = {
        role.name: tuple(sorted(Counter(map(tuple, rows.tolist())).items()))
        for role, rows in ((BASELINE, plain), (SPEC, spec))
    }
    tokens = tuple(range(VOCABULARY))
    distributions = [TokenLaw(g, tokens, tuple(target[g[-1] if g else 0].tolist())) for g in often_drawn(texts) if laws]
    drawn_texts = DrawnTexts("point", (0,), texts, tuple(distributions), None, None, None, (0, 0))
    return check_draws(drawn_texts, SPEC).p < ALPHA


def power(runs: int, seed: int, draws: Sequence[int] = DRAWS) -> Iterator[str]:
    source = np.random.default_rng(seed)
    verifies: dict[str, Verify] = {"right: rejection": verify_by_rejection, "right: coupled": by_coupling, **FAULTS}
    yield f"share of {runs:,} sets of texts that are rejected, false alarm {ALPHA:g}: against the law | the baseline"
    for share in SHARES:
        target, draft = chain(source, share)
        accepts = np.mean([acceptance.by_rejection(p, q) for p, q in zip(target, draft, strict=True)])
        yield f"\ndraft token accepted {accepts:.0%}" + "".join(f"{count:>22,}" for count in draws)
        for name, verify in verifies.items():
            columns = [
                [
                    np.mean([rejected(target, draft, verify, n, i, laws=laws) for i in range(runs)])
                    for laws in (True, False)
                ]
                for n in draws
            ]
            yield f"{name:<40}" + "".join(f"{law:>11.0%} | {baseline:>8.0%}" for law, baseline in columns)


@click.command()
@click.option("--table", type=click.Choice(["alarms", "power"]), default="alarms")
@click.option("--runs", type=click.IntRange(1), default=None, help="Tables (1,000,000) or sets of texts (20).")
@click.option("--seed", type=click.IntRange(0), default=1)
def main(table: str, runs: int | None, seed: int) -> None:
    """Print how often the gate raises a false alarm, or how often it sees a fault."""
    lines = false_alarms(runs or 1_000_000, seed) if table == "alarms" else power(runs or 20, seed)
    for line in lines:
        click.echo(line)


if __name__ == "__main__":
    main()
