"""Configurations compared in whole steps.

Alone, a product has the memory to itself from the first byte to the last. In a step, its first weights arrive while the
kernel before it drains, and its own end hides the beginning of the next. What is fastest alone need not be so there.

The weights are searched one by one. First, configurations are compared at a few rows, where a way to split k shows what
it can do. Then, for the way that was known and the best others, the work is moved in other ways at each number of rows,
which changes no bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from statistics import fmean
from typing import Any, Final, Generic

from specgate.backends.eagle3.cupy.kernels.compiling import Compiler, distinct
from specgate.backends.eagle3.cupy.kernels.matmul.gemm_config import ROW_TILE
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import MatmulRows
from specgate.backends.eagle3.cupy.tuned.lookup import WeightConfig
from specgate.backends.eagle3.cupy.tuning.steps import Place, Steps, StepTimes
from specgate.backends.eagle3.cupy.tuning.weight import Config, Launcher, Weight, launch_of
from specgate.backends.eagle3.cupy.tuning.weights import weights_of
from specgate.backends.eagle3.nouns.gemms import InSteps, TunedGemm
from specgate.errors import UsageError

SPLITS: Final = 2
"""Most ways to split k, beside the known one, for which ways to move the work are tried."""
FINAL_ROUNDS: Final = 5
WORTHWHILE: Final = 0.02
"""The least share of a step that a weight's products must take for a difference between configurations to be seen."""


def refined(steps: Steps, compiler: Compiler, seconds: float) -> Iterator[TunedGemm]:
    """Weight by weight, the one that takes most of a step first: the configurations under which steps are the fastest.

    Only configurations count that compute what they should. Weights that were searched before have what was chosen for
    them. Raises UsageError for a weight that has not been tuned alone.
    """
    began = time.monotonic()
    compiler.compile(kernel.spec for kernel in steps.kernels)
    known = {weight: known_of(weight, steps) for weight in weights_of(steps.shapes)}
    takes = {weight: min(gemm.us.values()) * steps.launches(weight) for weight, gemm in known.items()}
    least = WORTHWHILE * min(steps.times(rounds=1).values())
    for weight in sorted((w for w in known if takes[w] >= least), key=lambda w: -takes[w]):
        if time.monotonic() - began > seconds:
            return
        yield Search(weight, steps, compiler, steps.places(weight)).refined(known[weight])


def known_of(weight: Weight[Any], steps: Steps) -> TunedGemm:
    shape = next(shape for shape in steps.shapes if shape.key == weight.key)
    if (gemm := steps.tuned.entry(shape)) is None:
        raise UsageError(
            f"{weight} is not tuned for {steps.tuned.device}",
            hint="first run specgate engine tune gemm with the same --pair and --out",
        )
    return gemm


@dataclass(slots=True)
class Search(Generic[Config]):
    """For the configurations of one weight, which is used at `places`.

    `reference`: step times with the configurations that were known; `tried`: how many configurations have been timed.
    """

    weight: Weight[Config]
    steps: Steps
    compiler: Compiler
    places: Sequence[Place]
    reference: StepTimes = field(default_factory=dict)
    tried: int = 0

    def refined(self, known: TunedGemm) -> TunedGemm:
        """`known` with the best configurations, which the steps have afterwards."""
        before: WeightConfig[Config] = WeightConfig.of(known)
        self.reference = self.times(before, FINAL_ROUNDS)
        many = {place.step for place in self.places if place.kernel.rows > ROW_TILE}
        few = [place for place in self.places if place.step not in many] or self.places
        tried = [before.config, self.weight.default, *self.weight.candidates()]
        screened = [
            config for config in one_per_split(self.sorted(tried, few, everywhere)) if self.weight.right(config)
        ]
        same = [config for config in screened if config.split == before.config.split]
        others = [config for config in screened[:SPLITS] if config not in same]
        finalists = [before, *(self.moved(config) for config in (*same, *others))]
        times = [self.times(config, FINAL_ROUNDS) for config in finalists]
        chosen = min(range(len(finalists)), key=lambda i: self.ratio(times[i]))
        self.steps.retile(self.places, finalists[chosen])
        request = self.steps.request
        return replace(
            known,
            config=finalists[chosen].config.stored(),
            at_rows={rows: config.stored() for rows, config in finalists[chosen].at_rows.items()},
            in_steps=InSteps(
                pair=request.pair.name,
                points=request.points,
                k=request.k,
                before=known.config,
                before_us=rounded(times[0]),
                us=rounded(times[chosen]),
                tried=self.tried,
                measured=datetime.now(UTC).isoformat(timespec="seconds"),
            ),
        )

    def moved(self, config: Config) -> WeightConfig[Config]:
        """The best of what splits k as `config` does, one number of rows after the other: first how a block works, then
        how many blocks there are and what the next kernel waits for.
        """
        weight, best_so_far = self.weight, WeightConfig(config)
        self.steps.retile(self.places, best_so_far)
        for rows in sorted({place.kernel.rows for place in self.places if not only_splits(place.kernel)}):
            here, at = [place for place in self.places if place.kernel.rows == rows], partial(only_at, rows)
            ranked = self.sorted((weight.at(config, rows), *weight.moved(config, rows)), here, at)
            ranked = [*self.sorted((ranked[0], *weight.near(config, ranked[0])), here, at), *ranked]
            best = next((m for m in ranked if weight.same_bits(config, m, rows)), weight.at(config, rows))
            best_so_far = WeightConfig(config, {**best_so_far.at_rows, rows: best})
            self.steps.retile(self.places, best_so_far)
        return best_so_far

    def sorted(
        self, configs: Iterable[Config], places: Sequence[Place], serve: Callable[[Config], WeightConfig[Config]]
    ) -> list[Config]:
        """Those of `configs` that compile, the fastest first, by the times of the steps that have products at `places`.

        `serve` makes of each what those products are given.
        """
        launches = distinct(
            (config, tuple(launch_of(retiled(place.kernel, serve(config))) for place in places)) for config in configs
        )
        complaints = self.compiler.compile(spec for of in launches.values() for spec, _ in of)
        able = [config for config, of in launches.items() if not any(complaints[spec] for spec, _ in of)]
        affected = {place.step for place in places}

        def slowness(config: Config) -> float:
            self.steps.retile(places, serve(config))
            return self.ratio(self.steps.times(1, affected))

        self.tried += len(able)
        return sorted(able, key=slowness)

    def ratio(self, times: StepTimes) -> float:
        """The ratio to the steps with the known configurations: the mean over steps."""
        return fmean(value / self.reference[step] for step, value in times.items())

    def times(self, config: WeightConfig[Config], rounds: int) -> StepTimes:
        """The times of all steps, with `config` for the weight."""
        self.steps.retile(self.places, config)
        return self.steps.times(rounds)


def retiled(kernel: Launcher, config: WeightConfig[Any]) -> Launcher:
    """The same product as `config` has it."""
    made: Launcher = kernel.retiled(config.at(kernel.rows))
    return made


def only_splits(kernel: Launcher) -> bool:
    """Return whether the split of k is all that it takes from a configuration: where `matmul_many.cu` multiplies."""
    return isinstance(kernel, MatmulRows) and kernel.many is not None


def everywhere(config: Config) -> WeightConfig[Config]:
    return WeightConfig(config)


def only_at(rows: int, config: Config) -> WeightConfig[Config]:
    return WeightConfig(config, {rows: config})


def one_per_split(configs: Iterable[Config]) -> Iterator[Config]:
    """The first configuration of each way to split k."""
    splits = set[tuple[int, ...]]()
    for config in configs:
        if config.split not in splits:
            splits.add(config.split)
            yield config


def rounded(times: StepTimes) -> StepTimes:
    return {step: round(value, 2) for step, value in times.items()}
