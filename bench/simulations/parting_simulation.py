"""Error rate and power of the law of near ties: engines that only round, and engines that do something else.

    python -m bench.simulations.parting_simulation --cells 20000

At every place the gap between two tokens has some true value, and all values near 0 are equally frequent. Plain
decoding, verification and the passes that show log-probabilities each see every logit with an error. A share of the
error's variance is common to all passes (`common`); its size differs from place to place by a log-normal factor
(`spread`); logits lie on a grid (`unit`). A text parts where plain decoding and verification choose differently. Twenty
logits are shown at each place. All decisions are made by `specgate.analysis.tokens.near_ties`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import click
import numpy as np
from numpy.typing import NDArray

from specgate.analysis.tokens.near_ties import MIMIC, PARTED, SCORED, limits, shrunk, standardised

Floats = NDArray[np.float64]
SHOWN = 20
PLACES = (1, 4, 8, 16, 32, 64, 100)
FREQUENCY = 0.12
"""Top-2 gaps near 0 per token and logit, as seen of Llama-3.1-8B; half of them with either of two tokens above."""
BEYOND = 1 / FREQUENCY
"""Wrong tokens of an engine lie up to so far below the right one, in logits."""


@dataclass(frozen=True, slots=True)
class Engine:
    """`error`: standard deviation of a logit's error. `accepts`: how far below the best a draft may lie that
    verification accepts. `wrong`: share of the tokens that are any other one. `stale`: share of the places where
    verification is off by a whole logit. `verifies`: error that verification has on top.
    """

    name: str
    error: float = 0.07
    common: float = 0.7
    spread: float = 0.4
    unit: float = 2**-4
    accepts: float = 0.0
    wrong: float = 0.0
    stale: float = 0.0
    verifies: float = 0.0


RIGHT = (
    Engine("rounds by 0.05, nothing in common", 0.05, 0.0, 0.0),
    Engine("0.07, 70 % in common, spread 40 % (as vLLM)"),
    Engine("0.08, spread 70 %", 0.08, spread=0.7),
    Engine("0.06, 95 % in common", 0.06, 0.95, 0.0),
    Engine("0.06, all in common", 0.06, 0.999, 0.0),
    Engine("float16, 0.008", 0.008, unit=2**-7),
    Engine("logits on a grid of 0.125", 0.06, unit=2**-3),
    Engine("a coarse cache, 0.6", 0.6),
)
OTHER = (
    Engine("accepts within 0.25", accepts=0.25),
    Engine("accepts within 0.5", accepts=0.5),
    Engine("accepts within 1", accepts=1.0),
    Engine("a wrong token in 1,000", wrong=0.001),
    Engine("stale keys at 1 % of the places", stale=0.01),
    Engine("a quantised target verifies, 0.5", verifies=0.5),
)


@dataclass(frozen=True, slots=True)
class Places:
    """Places where texts part. `logits` [places, 20]: in float32, of the baseline's token, of the other one, and the
    rest. `passes`: three passes of the engine, [places, 20] each.
    """

    logits: Floats
    passes: tuple[Floats, Floats, Floats]


def on_grid(values: Floats, unit: float) -> Floats:
    return np.round(values / unit) * unit


def places_of(engine: Engine, source: np.random.Generator, count: int = 300_000) -> Places:
    """Simulate `count` places with close tokens, and return those where texts part."""
    widest = max(0.5, engine.accepts + 8 * engine.error, 8 * engine.error * np.exp(1.5 * engine.spread))
    widest = max(widest, 1.5 if engine.stale else 0.0, 6 * engine.verifies)
    size = engine.error * np.exp(engine.spread * source.standard_normal((count, 1)))
    common = np.sqrt(engine.common) * source.standard_normal((count, SHOWN))
    own = np.sqrt(1 - engine.common)
    best = source.uniform(16, 24, (count, 1))
    rest = best - 0.3 - np.cumsum(source.exponential(0.5, (count, SHOWN - 2)), axis=1) - widest / 2
    logits = np.concatenate([best, best + source.uniform(-widest, widest, (count, 1)), rest], axis=1)

    def seen(more: Floats | float = 0.0) -> Floats:
        error = size * (common + own * source.standard_normal((count, SHOWN)))
        return on_grid(logits + error + more, engine.unit)

    off = np.zeros((count, SHOWN))
    off[:, :2] += engine.verifies * source.standard_normal((count, 2))
    off[:, 1] += np.where(source.random(count) < engine.stale, 1.0, 0.0)
    plain, verified = seen()[:, :2], seen(off)[:, :2]
    first = source.random(count) < 0.5  # which of the two a tie goes to
    chosen = [np.where(v[:, 0] == v[:, 1], first, v[:, 0] > v[:, 1]) for v in (plain, verified)]
    if engine.accepts:
        near = np.abs(verified[:, 0] - verified[:, 1]) <= engine.accepts
        chosen[1] = np.where(near, source.random(count) < 0.5, chosen[1])
    parted = np.nonzero(chosen[0] != chosen[1])[0]
    if engine.wrong:  # in so many tokens as have `count` close places: `widest * FREQUENCY` of each token
        tokens = count / (widest * FREQUENCY)
        wrong = source.choice(count, min(count, round(tokens * engine.wrong)), replace=False)
        logits[wrong, 1] = logits[wrong, 0] - source.uniform(0, BEYOND, len(wrong))
        parted = np.concatenate([np.setdiff1d(parted, wrong), wrong])
    passes = (seen()[parted], seen()[parted], seen()[parted])
    return Places(logits[parted], passes)


def standing(engine: Engine, places: Places, rule: str) -> tuple[Floats, Floats]:
    """Return (gap, variance of a logit) of each place by `rule`."""
    shown, other, _ = places.passes
    logits, grid = places.logits, engine.unit**2 / 12
    two = shown if rule == "B" else logits
    gaps = np.abs(two[:, 0] - two[:, 1])
    if rule == "A":
        return gaps, (shown - logits).var(1, ddof=1) + grid
    if rule == "B":
        return gaps, (shown - other).var(1, ddof=1) / 2 + grid
    return gaps, MIMIC**2 * (other - logits).var(1, ddof=1)


def refused(gaps: Floats, variances: Floats, rule: str, error: float) -> NDArray[np.bool_]:
    """Cells that are called wrong. `gaps`, `variances`: [cells, places]."""
    s2, freedom = shrunk(variances, np.full(variances.shape, SHOWN - 1.0))
    x = standardised(gaps, s2, freedom, rule == "B")
    furthest, mean = limits(gaps.shape[1], error)
    called: NDArray[np.bool_] = (x.max(1) > furthest) | ((x**2).mean(1) > mean)
    return called


def rates(engine: Engine, source: np.random.Generator, cells: int) -> Iterator[tuple[str, list[float]]]:
    """Yield (rule, share of cells called wrong by number of places). `mixed`: half by A, half by B."""
    places = places_of(engine, source)
    by_rule = {rule: standing(engine, places, rule) for rule in "ABC"}
    for rule in (*"ABC", "mixed"):
        shares = []
        for count in PLACES:
            drawn = source.integers(0, len(places.logits), (cells, count))
            if rule != "mixed":
                gaps, variances = (values[drawn] for values in by_rule[rule])
                shares.append(float(refused(gaps, variances, rule, PARTED).mean()))
                continue
            xs = []
            for part, of in zip(np.array_split(drawn, 2, axis=1), "AB", strict=True):
                if part.shape[1]:
                    gaps, variances = (values[part] for values in by_rule[of])
                    s2, freedom = shrunk(variances, np.full(variances.shape, SHOWN - 1.0))
                    xs.append(standardised(gaps, s2, freedom, of == "B"))
            x = np.concatenate(xs, axis=1)
            furthest, mean = limits(count, PARTED)
            shares.append(float(((x.max(1) > furthest) | ((x**2).mean(1) > mean)).mean()))
        yield rule, shares


def scored(source: np.random.Generator, cells: int, led: float, within: float, tokens: int = 64) -> float:
    """Share of cells called wrong by `tokens` scored ones, of an engine that rounds by 0.07. `led`: share of its tokens
    that it takes from near misses, up to `within` below the best.
    """
    sigma = 0.07
    called = 0
    for _ in range(cells):
        gap = source.exponential(1 / FREQUENCY, tokens)
        rounds = source.standard_normal(tokens) * np.sqrt(2) * sigma > gap
        gaps = np.concatenate([gap[rounds], source.uniform(0, within, source.binomial(tokens, led))])
        if len(gaps):
            variances = sigma**2 * source.chisquare(SHOWN - 1, (1, len(gaps))) / (SHOWN - 1) * MIMIC**2
            called += int(refused(gaps[None], variances, "C", SCORED / 2)[0])
    return called / cells


@click.command()
@click.option("--cells", default=20_000, show_default=True)
@click.option("--seed", default=0, show_default=True)
def main(cells: int, seed: int) -> None:
    """Print the share of cells that are called wrong, in percent, by rule and number of places where texts part."""
    source = np.random.default_rng(seed)
    click.echo("\t".join(["engine", "rule", *map(str, PLACES)]))
    for engine in (*RIGHT, *OTHER):
        for rule, shares in rates(engine, source, cells if engine in RIGHT else cells // 10):
            click.echo("\t".join([engine.name, rule, *(f"{share:.2%}" for share in shares)]))
    for name, led, within in (("rounds alone", 0.0, 0.0), ("led to near misses within 0.45, 4 %", 0.04, 0.45)):
        for tokens in (64, 512):
            share = scored(source, cells // 10, led, within, tokens)
            click.echo(f"{tokens} scored tokens, {name}\tC\t{share:.2%}")


if __name__ == "__main__":
    main()
