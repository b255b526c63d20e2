"""Whole steps on random weights, whose products can be given other configurations, and how long they take."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

import torch

from specgate.backends.eagle3.cupy.bench.stage import Stage, stages_at
from specgate.backends.eagle3.cupy.bench.timing import elapsed_ms
from specgate.backends.eagle3.cupy.engine.decode_run import captured
from specgate.backends.eagle3.cupy.kernels.experts.expert_config import ExpertConfig
from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.matmul.gemm_config import GemmConfig
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import AnyConfig
from specgate.backends.eagle3.cupy.step.recording import recorded
from specgate.backends.eagle3.cupy.stream import Stream
from specgate.backends.eagle3.cupy.tuned.lookup import Tuned, WeightConfig
from specgate.backends.eagle3.cupy.tuning.weight import Launcher, Weight, key_of
from specgate.backends.eagle3.nouns.gemms import GemmShape, Key, StepsRequest
from specgate.contract import Role

REPLAYS: Final = 8

StepTimes = Mapping[str, float]
"""Step → its microseconds."""


@dataclass(frozen=True, slots=True)
class Place:
    """Place of a product with some weight: its step, and its launcher before anything was tried."""

    step: str
    kernel: Launcher


@dataclass(frozen=True, slots=True)
class Trial:
    """The configurations of one step's products: those that are being tried, and for all others those of `tuned`.

    `tried`: by a weight's key, and the most rows of x that a launcher will see.
    """

    tuned: Tuned
    tried: dict[tuple[Key | None, int], GemmConfig | ExpertConfig] = field(default_factory=dict)

    def find(self, shape: GemmShape, largest_step: int = 0) -> AnyConfig | None:
        tried = self.tried.get((shape.key, shape.m))
        return tried if isinstance(tried, GemmConfig) else self.tuned.find(shape, largest_step)

    def find_experts(self, shape: GemmShape) -> ExpertConfig | None:
        tried = self.tried.get((shape.key, shape.m))
        return tried if isinstance(tried, ExpertConfig) else self.tuned.find_experts(shape)


class Steps:
    """A baseline's and spec-k's steps at the points of `request`. The stream of `stream` must be current."""

    def __init__(self, request: StepsRequest, tuned: Tuned, stream: Stream, device: torch.device) -> None:
        """Raises CheckpointError for a bad pair, UsageError for sizes that cannot be decoded."""
        roles = [Role(0), Role(request.k)]
        self.request, self.tuned, self.stream = request, tuned, stream
        self.stages = dict[str, Stage]()
        sizes = [(point.context, point.batch) for point in request.points]
        for point, stages in zip(request.points, stages_at(request.pair, sizes, roles, tuned, device), strict=True):
            next(iter(stages.values())).fill()  # they share their caches
            self.stages |= {f"{role.name} {point}": stage for role, stage in stages.items()}
        self.trials = {step: Trial(tuned) for step in self.stages}

    @property
    def shapes(self) -> tuple[GemmShape, ...]:
        """The shapes of all products of all steps."""
        return tuple(sorted({shape for stage in self.stages.values() for shape in stage.cycle.gemms.shapes}))

    @property
    def kernels(self) -> Iterator[Kernel]:
        return (kernel for stage in self.stages.values() for kernel in stage.cycle.kernels().values())

    def places(self, weight: Weight[Any]) -> list[Place]:
        kernels = ((step, kernel) for step, stage in self.stages.items() for kernel in stage.cycle.kernels().values())
        return [Place(step, cast(Launcher, kernel)) for step, kernel in kernels if key_of(kernel) == weight.key]

    def retile(self, places: Collection[Place], config: WeightConfig[Any]) -> None:
        """Give the products at `places` the configurations of `config` until they get others.

        A product elsewhere in the same step that has the same weight and as many rows gets them, too.
        """
        for place in places:
            kernel = place.kernel
            self.trials[place.step].tried[key_of(kernel), kernel.rows] = config.at(kernel.rows)
        for step in {place.step for place in places}:
            self.stages[step].retile(self.trials[step])

    def launches(self, weight: Weight[Any]) -> int:
        """Return the largest number of products with `weight` in a step."""
        return max(launches_of(stage, weight) for stage in self.stages.values())

    def times(self, rounds: int, of: Collection[str] | None = None) -> StepTimes:
        """The times of every step, or only of the steps named in `of`."""
        return {
            step: step_latency_us(stage, self.stream, rounds)
            for step, stage in self.stages.items()
            if of is None or step in of
        }


def launches_of(stage: Stage, weight: Weight[Any]) -> int:
    stage.reset()
    with recorded(stage.cycle) as calls:
        stage.cycle(stage.b)
    return sum(key_of(call.kernel) == weight.key for call in calls)


def step_latency_us(stage: Stage, stream: Stream, rounds: int) -> float:
    """Microseconds per step. Of `rounds` of replays, each from the state that the step began with, the fastest counts:
    what disturbs a step slows it.
    """
    stage.reset()
    graph = captured(lambda: stage.cycle(stage.b), stream)
    return min(replayed_us(graph, stage, stream) for _ in range(rounds))


def replayed_us(graph: Any, stage: Stage, stream: Stream) -> float:
    """Microseconds per step: the median over `REPLAYS` replays."""
    stage.reset()
    # The first finds the caches as the reset has left them.
    return statistics.median(elapsed_ms(lambda: graph.launch(stream.cupy), 1, REPLAYS, stream)) * 1e3
