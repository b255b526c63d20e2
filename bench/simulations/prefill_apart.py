"""Would verdicts on whole requests be sharper if prefill and decode were told apart? Simulated.

    python -m bench.simulations.prefill_apart --runs 4000

Times are like those of the stored full runs on H200s (commit 3df436c, run 20261121T135829Z): decode varies by 0.04 %,
prefill by 0.35 %, and at 8K one prefill in eight stalls, by 1 to 53 %. Four rules judge the same pairs:

    today           pairs of whole requests, as specgate judges them
    apart           the same mean. Its error is that of decode, with every prefill at its mean, plus that of prefill, to
                    which prompts do not matter: prompts of one length take the same prefill
    typical         as `today`, with every prefill at the median of its role: stalls do not count
    decode alone    pairs of decode runs: another question, which `decode_speedup_ratio` answers

The true ratio is that of whole requests with their stalls, but for `decode alone`, which has its own. Where there is a
noise passport, it is that of whole requests for every rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import click
import numpy as np
from scipy import special

from bench.simulations.gate_simulation import (
    PROCESSES,
    PROMPT_SPREAD,
    Between,
    Draw,
    Flags,
    Floats,
    Turns,
    scheduled,
)
from specgate.analysis.intervals.autocorrelation import CONTRADICTED, Model, model_of
from specgate.analysis.intervals.between_runs import LEAST
from specgate.analysis.intervals.levels import FALSE_FAIL, FALSE_PASS, spent
from specgate.analysis.stats import planned_looks
from specgate.contract import PASS_ROUNDS, Scenario, Schedule
from specgate.planning.scenario import find

STALLS: Final = (
    *(0.011, 0.011, 0.012, 0.013, 0.016, 0.016, 0.021, 0.022, 0.024, 0.025, 0.029),
    *(0.029, 0.038, 0.039, 0.045, 0.054, 0.056, 0.067, 0.138, 0.226, 0.528),
)
"""The prefills of 8K tokens that took over 1 % longer than the median of their cell: 21 of 160."""
STALLED: Final = 21 / 160
CALM: Final = 0.0035
DECODE: Final = 0.0004
PLANS: Final = 20


@dataclass(frozen=True, slots=True)
class Request:
    """Milliseconds of a whole request, on average: its prefill, and its decode run with and without speculation."""

    prefill: float
    baseline: float
    spec: float


REQUESTS: Final[Mapping[str, Request]] = {
    "8K": Request(28.8, 229.0, 91.0),
    "32K": Request(160.0, 266.0, 94.0),
    "8B, 32K": Request(1542.0, 9585.0, 3700.0),
}


@dataclass(frozen=True, slots=True)
class Times:
    """Times of pairs, float64 [runs, pairs]: prefill and decode of the baseline and of speculation."""

    base_prefill: Floats
    base_decode: Floats
    spec_prefill: Floats
    spec_decode: Floats

    def until(self, look: int) -> Times:
        columns = (self.base_prefill, self.base_decode, self.spec_prefill, self.spec_decode)
        return Times(*(column[:, :look] for column in columns))

    def whole(self) -> Floats:
        """ln(spec / baseline) of the speed of whole requests."""
        found: Floats = np.log((self.base_prefill + self.base_decode) / (self.spec_prefill + self.spec_decode))
        return found

    def even(self, average: Callable[..., Floats]) -> Times:
        """The same with every prefill at the average of its role."""
        base, spec = (average(p, axis=1, keepdims=True) for p in (self.base_prefill, self.spec_prefill))
        return replace(self, base_prefill=base, spec_prefill=spec)


# ── noise: factors on the prefill of both roles and on the decode of speculation ──────────────────────────────────────


def drawn(kind: str, request: Request, turns: Turns, of_prompt: Floats, noise: Draw) -> Times:
    """Times under a kind of NOISES. `of_prompt`: factors on spec's decode, float64 [runs, prompt sets]."""
    shape = (len(of_prompt), len(turns.orders))
    base, spec, decode = 1 + noise.normal(0, CALM, shape), 1 + noise.normal(0, CALM, shape), np.ones(shape)
    if kind == "stalls in both roles":
        base = base + stalls(shape, noise)
    if kind.startswith("stalls"):
        spec = spec + stalls(shape, noise)
    if kind == "AR(1) 0.9 of spec's prefill":
        spec = spec + 0.02 * alike(shape, noise)
    if kind == "AR(1) 0.9 of all of spec":
        drift = 0.006 * alike(shape, noise)
        spec, decode = spec + drift, decode + drift
    return Times(
        request.prefill * base,
        request.baseline * (1 + noise.normal(0, DECODE, shape)),
        request.prefill * spec,
        request.spec * (decode + noise.normal(0, DECODE, shape)) * of_prompt[:, turns.prompt_sets],
    )


NOISES: Final = (
    "calm",
    "stalls in both roles",
    "stalls in spec alone",
    "AR(1) 0.9 of spec's prefill",
    "AR(1) 0.9 of all of spec",
)


def stalls(shape: tuple[int, int], noise: Draw) -> Floats:
    found: Floats = (noise.random(shape) < STALLED) * noise.choice(STALLS, shape)
    return found


def alike(shape: tuple[int, int], noise: Draw) -> Floats:
    """An AR(1) process of 0.9 with variance 1."""
    found = noise.normal(size=shape)
    for i in range(1, shape[1]):
        found[:, i] = 0.9 * found[:, i - 1] + math.sqrt(1 - 0.81) * found[:, i]
    return found


def truth(kind: str, request: Request, of_prompt: Floats) -> Floats:
    """The expected log-ratio of whole requests per run: stalls count with their chance."""

    def expected(decode: Floats, stalled: bool) -> Floats:
        calm: Floats = np.log(request.prefill + decode)
        longer = [np.log(request.prefill * (1 + s) + decode) - calm for s in STALLS] if stalled else [0.0]
        whole: Floats = calm + STALLED * np.mean(longer, axis=0)
        return whole

    base = expected(np.full_like(of_prompt, request.baseline), kind == "stalls in both roles")
    found: Floats = (base - expected(request.spec * of_prompt, kind.startswith("stalls"))).mean(axis=1)
    return found


# ── the rules ────────────────────────────────────────────────────────────────────────────────────────────────────────


def error_of(d: Floats, model: Model) -> Floats:
    """`intervals.autocorrelation.fit(…).error` for many runs at once."""
    around = d - d.mean(axis=1, keepdims=True)
    squares = np.stack([((around @ w.residual) * around).sum(axis=1) for w in model.weighings], axis=1)
    fits = model.freedom * np.log(np.maximum(squares, 1e-300)) + [w.constant for w in model.weighings]
    kept = fits <= fits.min(axis=1, keepdims=True) + CONTRADICTED
    variances = np.maximum(squares, 0) / model.freedom * [w.variance for w in model.weighings]
    found: Floats = np.sqrt(np.where(kept, variances, 0.0).max(axis=1))
    return found


def estimate(rule: str, seen: Times, model: Model, all_alike: Model) -> tuple[Floats, list[tuple[Floats, int]]]:
    """The mean by a rule, and the (standard error, degrees of freedom) of its parts, whose reaches add up."""
    whole = seen.whole()
    if rule == "apart":
        decode = seen.even(np.mean).whole()
        parts = [(error_of(decode, model), model.freedom), (error_of(whole - decode, all_alike), all_alike.freedom)]
        return whole @ model.weights, parts
    if rule == "typical":
        whole = seen.even(np.median).whole()
    if rule == "decode alone":
        whole = np.log(seen.base_decode / seen.spec_decode)
    return whole @ model.weights, [(error_of(whole, model), model.freedom)]


RULES: Final = ("today", "apart", "typical", "decode alone")


def decided(
    rule: str, times: Times, floor: Floats, turns: Turns, looks: Sequence[int], between: Between
) -> tuple[Flags, Flags]:
    """For each run, whether it ended above or below its floor (log scale)."""
    above, below = np.zeros(len(floor), bool), np.zeros(len(floor), bool)
    for number, look in enumerate(looks, 1):
        when = tuple(range(look))
        model, all_alike = (
            model_of(turns.orders[:look], sets, when) for sets in (turns.prompt_sets[:look], (0,) * look)
        )
        mean, parts = estimate(rule, times.until(look), model, all_alike)

        def reach(share: float, parts: Sequence[tuple[Floats, int]] = parts) -> Floats:
            own = sum(special.stdtrit(freedom, 1 - share) * error for error, freedom in parts)
            return np.hypot(own, between.half_width(share))

        still = ~(above | below)
        above |= still & (mean - reach(spent(FALSE_PASS, number)) >= floor)
        below |= still & (mean + reach(spent(FALSE_FAIL, number)) < floor)
    return above, below


def measured(kind: str, request: Request, turns: Turns, of_prompt: Floats, noise: Draw) -> Between:
    """A noise passport of PROCESSES processes under the same noise."""
    pairs = PASS_ROUNDS * of_prompt.shape[1]
    once = Turns(turns.prompt_sets[:pairs], turns.orders[:pairs])
    means = [drawn(kind, request, once, of_prompt, noise).whole().mean(axis=1) for _ in range(PROCESSES)]
    return replace(
        Between.assumed(len(of_prompt)), sd=np.std(means, axis=0, ddof=1), freedom=PROCESSES - 1, least=LEAST
    )


def rates(
    scenario: Scenario, kind: str, request: Request, runs: int, passport: bool, noise: Draw
) -> Iterator[tuple[str, float, float, float, float]]:
    """(rule, false PASS, false FAIL, PASS at +3 %, FAIL at −3 %) in percent of `runs` runs."""
    found: dict[str, list[list[float]]] = {rule: [] for rule in RULES}
    for part in np.array_split(np.arange(runs), PLANS):
        seed = int(noise.integers(1 << 32))
        turns = Turns.of(replace(scenario, workload=replace(scenario.workload, seed=seed)))
        of_prompt = np.exp(noise.normal(0, PROMPT_SPREAD, (len(part), scenario.workload.prompt_sets)))
        times = drawn(kind, request, turns, of_prompt, noise)
        count = len(part)
        between = measured(kind, request, turns, of_prompt, noise) if passport else Between.assumed(count)
        whole = truth(kind, request, of_prompt)
        decode = math.log(request.baseline / request.spec) - np.log(of_prompt).mean(axis=1)
        for rule in RULES:
            true = decode if rule == "decode alone" else whole
            at = [decided(rule, times, true - gap, turns, planned_looks(scenario), between) for gap in GAPS]
            (passed, failed), (faster, _), (_, slower) = at
            found[rule].append([float(flags.mean()) for flags in (passed, failed, faster, slower)])
    for rule, shares in found.items():
        a, b, c, d = 100 * np.mean(shares, axis=0)
        yield rule, a, b, c, d


GAPS: Final = (0.0, math.log1p(0.03), math.log1p(-0.03))


@click.command()
@click.option("--runs", default=4000, show_default=True, type=click.IntRange(100))
@click.option("--seed", default=1, show_default=True)
def main(runs: int, seed: int) -> None:
    """Print a Markdown table: false PASS / false FAIL at the floor, then PASS at +3 % / FAIL at −3 %, in percent."""
    noise = np.random.default_rng(seed)
    template = replace(find("cpu-1k-single"), grid=replace(find("cpu-1k-single").grid, context=(64,)))
    click.echo(f"| passport | request | noise | schedule | {' | '.join(RULES)} |")
    click.echo(f"|---|---|---|---{'|---' * len(RULES)}|")
    for passport in (False, True):
        for name, request in REQUESTS.items():
            for kind in NOISES:
                for sets, rounds in ((8, 2), (4, 4), (8, 4)):
                    scenario = scheduled(template, sets, Schedule(rounds, 1))
                    cells = rates(scenario, kind, request, runs, passport, noise)
                    shown = (f"{a:.2f} / {b:.2f}; {c:.0f} / {d:.0f}" for _, a, b, c, d in cells)
                    known = "of 5 processes" if passport else "none"
                    click.echo(f"| {known} | {name} | {kind} | {sets} × {rounds} | {' | '.join(shown)} |")


if __name__ == "__main__":
    main()
