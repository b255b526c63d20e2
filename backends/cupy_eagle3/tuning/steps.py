"""Whole steps on random weights, whose products can be cut otherwise, and how long they take."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

from specgate.backends.cupy_eagle3.bench.recording import launchers, recorded
from specgate.backends.cupy_eagle3.bench.stage import Stage, random_stages
from specgate.backends.cupy_eagle3.bench.timing import timed_event
from specgate.backends.cupy_eagle3.engine.graph import captured
from specgate.backends.cupy_eagle3.kernels.gemm_config import GemmConfig
from specgate.backends.cupy_eagle3.kernels.loader import Kernel
from specgate.backends.cupy_eagle3.kernels.matmul_rows import MatmulRows
from specgate.backends.cupy_eagle3.stream import Stream
from specgate.backends.cupy_eagle3.tuned.lookup import Cuts, Tuned
from specgate.backends.cupy_eagle3.tuning.weights import Weight
from specgate.core import Role
from specgate.tuning.gemms import GemmShape, StepsRequest

REPLAYS: Final = 8

Us = Mapping[str, float]
"""Step → its microseconds."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the launcher of a product is held, and which step that is of."""

    step: str
    owner: object
    name: str
    kernel: MatmulRows

    def cut(self, config: GemmConfig) -> None:
        vars(self.owner)[self.name] = self.kernel.recut(config)


class Steps:
    """A baseline's and spec-k's steps at the points of `request`. The stream of `stream` must be current."""

    def __init__(self, request: StepsRequest, tuned: Tuned, stream: Stream, device: torch.device) -> None:
        """Raises CheckpointError for a bad pair, UsageError for sizes that cannot be decoded."""
        roles = [Role(0), Role(request.k)]
        self.request, self.tuned, self.stream = request, tuned, stream
        self.stages = dict[str, Stage]()
        for point in request.points:
            stages = random_stages(request.pair, point.context, point.batch, roles, tuned, device)
            next(iter(stages.values())).fill()  # they share their caches
            self.stages |= {f"{role.name} {point}": stage for role, stage in stages.items()}

    @property
    def shapes(self) -> tuple[GemmShape, ...]:
        """Of all products, the steps' together."""
        return tuple(sorted({shape for stage in self.stages.values() for shape in stage.cycle.gemms.shapes}))

    @property
    def kernels(self) -> Iterator[Kernel]:
        return (kernel for stage in self.stages.values() for *_, kernel in launchers(stage.cycle, ""))

    def places(self, weight: Weight) -> list[Place]:
        found = ((step, *place) for step, stage in self.stages.items() for place in launchers(stage.cycle, ""))
        return [
            Place(step, owner, name, kernel)
            for step, owner, name, _, kernel in found
            if isinstance(kernel, MatmulRows) and kernel.weight == (weight.n, weight.k)
        ]

    def launches(self, weight: Weight) -> int:
        """Of products with `weight`, in the step that has the most of them."""
        return max(launches_of(stage, weight) for stage in self.stages.values())

    def us(self, rounds: int, of: Collection[str] | None = None) -> Us:
        """Of every step, or only those named."""
        return {
            step: step_us(stage, self.stream, rounds) for step, stage in self.stages.items() if of is None or step in of
        }


def cut(places: Collection[Place], cuts: Cuts) -> None:
    for place in places:
        place.cut(cuts.at(place.kernel.rows))


def launches_of(stage: Stage, weight: Weight) -> int:
    stage.reset()
    with recorded(stage.cycle) as calls:
        stage.cycle(stage.b)
    products = [call.kernel for call in calls if isinstance(call.kernel, MatmulRows)]
    return sum(product.weight == (weight.n, weight.k) for product in products)


def step_us(stage: Stage, stream: Stream, rounds: int) -> float:
    """Microseconds per step. Of `rounds` of replays, each from the state that the step began with, the fastest counts:
    what disturbs a step slows it.
    """
    stage.reset()
    graph = captured(lambda: stage.cycle(stage.b), stream)
    return min(replayed_us(graph, stage, stream) for _ in range(rounds))


def replayed_us(graph: Any, stage: Stage, stream: Stream) -> float:
    stage.reset()
    events = [timed_event() for _ in range(REPLAYS + 1)]
    graph.launch(stream.cupy)  # the first finds the caches as the reset has left them
    events[0].record(stream.torch)
    for after in events[1:]:
        graph.launch(stream.cupy)
        after.record(stream.torch)
    stream.wait()
    each: list[float] = [events[i].elapsed_time(events[i + 1]) * 1e3 for i in range(REPLAYS)]
    return statistics.median(each)
