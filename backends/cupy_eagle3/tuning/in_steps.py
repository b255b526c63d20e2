"""Configurations compared in whole steps.

Alone, a product has the memory to itself from the first byte to the last; in a step its first weights arrive while the
kernel before it drains, and its own end hides the beginning of the next. What is fastest alone need not be so there.

Weight by weight: first the configurations at a few rows, where a way to split k is seen at its best; then, for the way
that was known and the best others, how the work is moved at each number of rows, which changes no bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from statistics import fmean
from typing import Final

import torch

from specgate.backends.cupy_eagle3.kernels.compiling import Compiler, distinct
from specgate.backends.cupy_eagle3.kernels.gemm_config import ROW_TILE, GemmConfig
from specgate.backends.cupy_eagle3.kernels.loader import multiprocessors
from specgate.backends.cupy_eagle3.tuned.lookup import Cuts
from specgate.backends.cupy_eagle3.tuning.check import Oracles, first_rows
from specgate.backends.cupy_eagle3.tuning.product import MOST, Product
from specgate.backends.cupy_eagle3.tuning.steps import Place, Steps, Us, cut
from specgate.backends.cupy_eagle3.tuning.weights import Weight, weights_of
from specgate.errors import BackendError, UsageError
from specgate.tuning.gemms import InSteps, TunedGemm

SPLITS: Final = 2
"""Ways to split k, at most, for which ways to move the work are tried, beside the known one."""
FINAL_ROUNDS: Final = 5
WORTHWHILE: Final = 0.02
"""Of a step, at least, must be a weight's products for a difference between configurations to be seen there."""


def refined(steps: Steps, compiler: Compiler, seconds: float) -> Iterator[TunedGemm]:
    """Weight by weight, the one that takes most of a step first: of all configurations that compute what they should,
    those under which the steps are the fastest, with those chosen before in place.

    Raises UsageError for a weight that has not been tuned alone.
    """
    began = time.monotonic()
    compiler.compile(kernel.spec for kernel in steps.kernels)
    known = {weight: known_of(weight, steps) for weight in weights_of(steps.shapes)}
    takes = {weight: min(gemm.us.values()) * steps.launches(weight) for weight, gemm in known.items()}
    least = WORTHWHILE * min(steps.us(rounds=1).values())
    for weight in sorted((w for w in known if takes[w] >= least), key=lambda w: -takes[w]):
        if time.monotonic() - began > seconds:
            return
        yield Search(weight, steps, compiler, steps.places(weight)).refined(known[weight])


def known_of(weight: Weight, steps: Steps) -> TunedGemm:
    shape = next(shape for shape in steps.shapes if shape.weight == (weight.n, weight.k))
    if (gemm := steps.tuned.entry(shape)) is None:
        raise UsageError(
            f"{weight} is not tuned for {steps.tuned.device}",
            hint="first run specgate tune gemm with the same --pair and --out",
        )
    return gemm


@dataclass(slots=True)
class Search:
    """For the configurations of one weight. `reference`: steps with those that were known; `tried`: how many have been
    timed.
    """

    weight: Weight
    steps: Steps
    compiler: Compiler
    places: Sequence[Place]
    reference: Us = field(default_factory=dict)
    tried: int = 0

    def refined(self, known: TunedGemm) -> TunedGemm:
        """The best cuts, which are in place afterwards."""
        before = Cuts.of(known)
        self.reference = self.us(before, FINAL_ROUNDS)
        many = {place.step for place in self.places if place.kernel.rows > ROW_TILE}
        few = [place for place in self.places if place.step not in many] or self.places
        candidates = [before.config, GemmConfig(), *GemmConfig.candidates(self.weight.n, self.weight.k)]
        screened = [
            config for config in one_per_split(self.sorted(candidates, few, Cuts)) if right(self.weight, config)
        ]
        same = [config for config in screened if config.split == before.config.split]
        others = [config for config in screened[:SPLITS] if config not in same]
        finalists = [before, *(self.moved(config) for config in (*same, *others))]
        us = [self.us(cuts, FINAL_ROUNDS) for cuts in finalists]
        chosen = min(range(len(finalists)), key=lambda i: self.ratio(us[i]))
        cut(self.places, finalists[chosen])
        request = self.steps.request
        return replace(
            known,
            config=asdict(finalists[chosen].config),
            at_rows={rows: asdict(config) for rows, config in finalists[chosen].at_rows.items()},
            in_steps=InSteps(
                pair=request.pair.name,
                points=request.points,
                k=request.k,
                before=known.config,
                before_us=rounded(us[0]),
                us=rounded(us[chosen]),
                tried=self.tried,
                measured=datetime.now(UTC).isoformat(timespec="seconds"),
            ),
        )

    def moved(self, config: GemmConfig) -> Cuts:
        """The best of what splits k as `config` does, one number of rows after the other: tiles and stages, in one
        pass or as a block that keeps x; then, with the best of these, passes and whether the next kernel is held back.
        """
        weight, sms = self.weight, processors()
        recuts = config.recuts(weight.n, weight.k, sms)
        cuts = Cuts(config)
        cut(self.places, cuts)
        for rows in sorted({place.kernel.rows for place in self.places}):
            here, at = [place for place in self.places if place.kernel.rows == rows], partial(only_at, rows)
            row_tiles = -(-rows // ROW_TILE)
            simple = [
                recut
                for recut in recuts
                if not recut.held and (recut.passes == 1 or recut.alone(weight.n, weight.k, row_tiles, sms))
            ]
            found = self.sorted((config.at(rows), *simple), here, at)
            alike = [r for r in recuts if (r.tiles, r.stages) == (found[0].tiles, found[0].stages)]
            found = [*self.sorted((found[0], *alike), here, at), *found]
            best = next((r for r in found if same_bits(weight, config, r, rows)), config.at(rows))
            cuts = Cuts(config, {**cuts.at_rows, rows: best})
            cut(self.places, cuts)
        return cuts

    def sorted(
        self, configs: Iterable[GemmConfig], places: Sequence[Place], cuts: Callable[[GemmConfig], Cuts]
    ) -> list[GemmConfig]:
        """Those that compile, the fastest first, by the steps that have a product at `places`, cut by `cuts`."""
        specs = distinct(
            (config, tuple(place.kernel.recut(cuts(config).at(place.kernel.rows)).spec for place in places))
            for config in configs
        )
        complaints = self.compiler.compile(spec for of in specs.values() for spec in of)
        able = [config for config, of in specs.items() if not any(complaints[spec] for spec in of)]
        affected = {place.step for place in places}

        def us(config: GemmConfig) -> float:
            cut(places, cuts(config))
            return self.ratio(self.steps.us(1, affected))

        self.tried += len(able)
        return sorted(able, key=us)

    def ratio(self, us: Us) -> float:
        """To the steps with what was known, the mean over steps."""
        return fmean(value / self.reference[step] for step, value in us.items())

    def us(self, cuts: Cuts, rounds: int) -> Us:
        cut(self.places, cuts)
        return self.steps.us(rounds)


def processors() -> int:
    """SMs of the GPU that the steps run on."""
    gpu = multiprocessors()
    if gpu is None:
        raise BackendError("steps are compared on a GPU; torch sees none")
    return gpu[0]


def only_at(rows: int, config: GemmConfig) -> Cuts:
    return Cuts(config, {rows: config})


def one_per_split(configs: Iterable[GemmConfig]) -> Iterator[GemmConfig]:
    """Of those that split k alike, the first."""
    seen = set[tuple[int, int]]()
    for config in configs:
        if config.split not in seen:
            seen.add(config.split)
            yield config


def right(weight: Weight, config: GemmConfig) -> bool:
    """Whether it computes what it should."""
    products = (Product.random(weight.n, weight.k, epilogue, 1) for epilogue in weight.epilogues)
    return all(Oracles.of(product).fault(config) is None for product in products)


def same_bits(weight: Weight, config: GemmConfig, recut: GemmConfig, rows: int) -> bool:
    """Whether `recut` makes of `rows` rows what `config` makes of them a few at a time, and what it should."""
    for epilogue in weight.epilogues:
        many = Product.random(weight.n, weight.k, epilogue, 1, rows=rows)
        if Oracles.of(many).fault(recut) is not None:
            return False
        few = [many.part(first, min(first + MOST, rows)) for first in range(0, rows, MOST)]
        wanted = torch.cat([first_rows(part, config, part.rows) for part in few])
        if not torch.equal(first_rows(many, recut, rows), wanted):
            return False
    return True


def rounded(us: Us) -> Us:
    return {step: round(value, 2) for step, value in us.items()}
