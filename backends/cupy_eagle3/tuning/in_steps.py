"""Configurations compared in whole steps.

Alone, a product has the memory to itself from the first byte to the last; in a step its first weights arrive while the
kernel before it drains, and its own end hides the beginning of the next. What is fastest alone need not be so there.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

import torch

from specgate.backends.cupy_eagle3.bench.recording import launchers, recorded
from specgate.backends.cupy_eagle3.bench.stage import Stage, random_stages
from specgate.backends.cupy_eagle3.graph import captured
from specgate.backends.cupy_eagle3.kernels.loader import Kernel
from specgate.backends.cupy_eagle3.kernels.matmul_rows import GemmConfig, MatmulRows
from specgate.backends.cupy_eagle3.stream import Stream
from specgate.backends.cupy_eagle3.timing import timed_event
from specgate.backends.cupy_eagle3.tuning.check import Oracles
from specgate.backends.cupy_eagle3.tuning.compiling import Compiler
from specgate.backends.cupy_eagle3.tuning.product import Product
from specgate.backends.cupy_eagle3.tuning.tuned import Tuned
from specgate.backends.cupy_eagle3.tuning.weights import Weight, weights_of
from specgate.core import Role
from specgate.errors import UsageError
from specgate.tuning.gemms import GemmShape, InSteps, StepsRequest, TunedGemm

REPLAYS: Final = 8
ROUNDS: Final = 2
"""Of replays, each from the state that the step began with; the faster one counts: what disturbs a step slows it."""
FINALISTS: Final = 3
FINAL_ROUNDS: Final = 6
WORTHWHILE: Final = 0.02
"""Of a step, at least, must be a weight's products for a difference between configurations to be seen there."""

Us = Mapping[str, float]
"""Role → microseconds per step."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a launcher is held."""

    owner: object
    name: str
    kernel: MatmulRows

    def cut(self, config: GemmConfig) -> None:
        vars(self.owner)[self.name] = self.kernel.recut(config)


class Steps:
    """Steps of the roles of `request` on random weights, whose products can be cut otherwise. The stream of `stream`
    must be current.
    """

    def __init__(self, request: StepsRequest, tuned: Tuned, stream: Stream, device: torch.device) -> None:
        """Raises CheckpointError for a bad pair, UsageError for sizes that cannot be decoded."""
        roles = [Role(k) for k in dict.fromkeys((0, request.k))]
        self.request, self.tuned, self.stream = request, tuned, stream
        self.stages = random_stages(request.pair, request.context, request.batch, roles, tuned, device)
        next(iter(self.stages.values())).fill()  # the stages share their caches

    @property
    def shapes(self) -> tuple[GemmShape, ...]:
        """Of all products, the roles' together."""
        return tuple(sorted({shape for stage in self.stages.values() for shape in stage.cycle.gemms.shapes}))

    @property
    def kernels(self) -> Iterator[Kernel]:
        return (kernel for stage in self.stages.values() for *_, kernel in launchers(stage.cycle, ""))

    def places(self, weight: Weight) -> list[Place]:
        found = (place for stage in self.stages.values() for place in launchers(stage.cycle, ""))
        return [
            Place(owner, name, kernel)
            for owner, name, _, kernel in found
            if isinstance(kernel, MatmulRows) and kernel.weight == (weight.n, weight.k)
        ]

    def launches(self, weight: Weight) -> int:
        """Of products with `weight`, in a step of the role that has the most of them."""
        return max(launches_of(stage, weight) for stage in self.stages.values())

    def us(self, rounds: int = ROUNDS) -> Us:
        return {role.name: step_us(stage, self.stream, rounds) for role, stage in self.stages.items()}


def launches_of(stage: Stage, weight: Weight) -> int:
    stage.reset()
    with recorded(stage.cycle) as calls:
        stage.cycle(stage.b)
    products = [call.kernel for call in calls if isinstance(call.kernel, MatmulRows)]
    return sum(product.weight == (weight.n, weight.k) for product in products)


def step_us(stage: Stage, stream: Stream, rounds: int) -> float:
    """Microseconds per step: of `rounds` medians over replays, the least."""
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


def refined(steps: Steps, compiler: Compiler, seconds: float) -> Iterator[TunedGemm]:
    """Weight by weight, the one that takes most of a step first: of all configurations that compute what they should,
    the one under which the steps are the fastest, with those chosen before in place.

    Raises UsageError for a weight that has not been tuned alone.
    """
    began = time.monotonic()
    compiler.compile(kernel.spec for kernel in steps.kernels)
    known = {weight: known_of(weight, steps) for weight in weights_of(steps.shapes)}
    takes = {weight: min(gemm.us.values()) * steps.launches(weight) for weight, gemm in known.items()}
    least = WORTHWHILE * min(steps.us().values())
    for weight in sorted((w for w in known if takes[w] >= least), key=lambda w: -takes[w]):
        if time.monotonic() - began > seconds:
            return
        yield chosen(weight, known[weight], steps, compiler)


def known_of(weight: Weight, steps: Steps) -> TunedGemm:
    shape = next(shape for shape in steps.shapes if shape.weight == (weight.n, weight.k))
    if (gemm := steps.tuned.entry(shape)) is None:
        raise UsageError(
            f"{weight} is not tuned for {steps.tuned.device}",
            hint="first run specgate tune gemm with the same --pair and --out",
        )
    return gemm


def chosen(weight: Weight, known: TunedGemm, steps: Steps, compiler: Compiler) -> TunedGemm:
    """The best configuration of `weight`, which is in place afterwards."""
    request, places, before = steps.request, steps.places(weight), GemmConfig(**known.config)
    specs = {
        config: tuple(place.kernel.recut(config).spec for place in places)
        for config in (before, GemmConfig(), *GemmConfig.candidates(weight.n, weight.k))
    }
    complaints = compiler.compile(spec for of in specs.values() for spec in of)
    first = {of: config for config, of in reversed(specs.items()) if not any(complaints[spec] for spec in of)}

    def us(config: GemmConfig, rounds: int = ROUNDS) -> Us:
        for place in places:
            place.cut(config)
        return steps.us(rounds)

    screened = sorted(first.values(), key=lambda config: sum(us(config).values()))
    finalists = dict.fromkeys((before, *right(weight, screened)))
    final = {config: us(config, FINAL_ROUNDS) for config in finalists}
    best = min(final, key=lambda config: sum(final[config].values()))
    for place in places:
        place.cut(best)
    return replace(
        known,
        config=asdict(best),
        in_steps=InSteps(
            pair=request.pair.name,
            context=request.context,
            batch=request.batch,
            k=request.k,
            before=known.config,
            before_us=rounded(final[before]),
            us=rounded(final[best]),
            tried=len(screened),
            measured=datetime.now(UTC).isoformat(timespec="seconds"),
        ),
    )


def right(weight: Weight, configs: Sequence[GemmConfig]) -> list[GemmConfig]:
    """The first FINALISTS of `configs` that compute what they should."""
    oracles = [Oracles.of(Product.random(weight.n, weight.k, epilogue, 1)) for epilogue in weight.epilogues]
    found = list[GemmConfig]()
    for config in configs:
        if len(found) < FINALISTS and all(oracle.fault(config) is None for oracle in oracles):
            found.append(config)
    return found


def rounded(us: Us) -> Us:
    return {role: round(value, 2) for role, value in us.items()}
