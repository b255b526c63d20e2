"""The search: compile what is worth trying, leave out what is wrong, time the rest, and keep the fastest over all rows.

The fastest is the one with the least sum of times over `ROWS`. One configuration has to serve a weight at every number
of rows. A cycle runs the target at several numbers of rows and the draft at one, so none of them counts more than
another. The worst time alone would not do: it could let a number of rows decide at which all are nearly alike. The more
rows there are, the more experts they have: of these, the time for each byte counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Final

import torch

from specgate.backends.eagle3.cupy.bench.synthetic import Geometry, random_pair
from specgate.backends.eagle3.cupy.bench.timing import inputs_to_rotate, read_bandwidth, time_launches
from specgate.backends.eagle3.cupy.device import first_gpu, l2_bytes, multiprocessor_count, multiprocessors
from specgate.backends.eagle3.cupy.kernels.compiling import Compiler, compiler, distinct
from specgate.backends.eagle3.cupy.kernels.experts.expert_config import ExpertConfig
from specgate.backends.eagle3.cupy.kernels.matmul.gemm_config import GemmConfig
from specgate.backends.eagle3.cupy.kernels.matmul.wgmma_config import unable
from specgate.backends.eagle3.cupy.memory.sizes import Sizes
from specgate.backends.eagle3.cupy.step.cycle import Cycle
from specgate.backends.eagle3.cupy.stream import Stream
from specgate.backends.eagle3.cupy.tuned.lookup import Tuned, code_sha256
from specgate.backends.eagle3.cupy.tuning import wgmma
from specgate.backends.eagle3.cupy.tuning.gemm_weight import GemmWeight
from specgate.backends.eagle3.cupy.tuning.in_steps import refined
from specgate.backends.eagle3.cupy.tuning.product import ROWS, OnRandom
from specgate.backends.eagle3.cupy.tuning.steps import Steps
from specgate.backends.eagle3.cupy.tuning.weight import Config, Weight
from specgate.backends.eagle3.cupy.tuning.weights import weights_of
from specgate.backends.eagle3.lib.memory import refusing_overflow
from specgate.backends.eagle3.nouns.gemms import GemmShape, Key, StepsRequest, TunedGemm
from specgate.errors import BackendError
from specgate.machine import inventory

POSITIONS = 1024
"""Any number: no product depends on it."""


def gemm_shapes(geometry: Geometry, batches: Sequence[int], draft_lengths: Sequence[int]) -> tuple[GemmShape, ...]:
    """The products of a baseline step, and of cycles of `draft_lengths`, over `batches` slots; sorted.

    The launchers of such steps are made, on a pair without weights, and asked.
    """
    target, draft = random_pair(geometry, POSITIONS, "meta")
    shapes = set[GemmShape]()
    for slots in batches:
        for k in {0, *(draft_lengths if draft else ())}:
            shapes.update(Cycle(target, draft, Sizes(slots, POSITIONS, k + 1), slots, k).gemms.shapes)
    return tuple(sorted(shapes))


SCREEN: Final = 4
"""The number of rows at which all candidates are timed. The fastest there are timed at all of `ROWS`."""
SHORTLIST: Final = 6
TOGETHER: Final = 6
"""How many weights are compiled for before they are timed, so that nothing compiles while the clock runs."""

Times = Mapping[int, float]
"""Rows → microseconds per launch."""


class Tuner:
    """An `protocols.GemmTuner` for the GPU that CUDA shows first."""

    def __init__(self) -> None:
        """Raises EnvironmentRefused where there is none, or it is too old."""
        device = first_gpu()
        major, minor = torch.cuda.get_device_capability(device)
        self.device, self.compute_capability = torch.cuda.get_device_name(device), f"{major}.{minor}"
        self.kept = dict[Key, TunedGemm]()
        """Weights that only lack products by wgmma, as `untuned` has seen them."""

    def untuned(self, shapes: Sequence[GemmShape], file: Path | None) -> Sequence[GemmShape]:
        tuned = Tuned.on(self.device, file)
        entries = [(shape, tuned.entry(shape)) for shape in shapes]
        missed = {shape.key for shape, gemm in entries if gemm and gemm.wgmma is None and self.tries_wgmma(shape)}
        self.kept = {shape.key: gemm for shape, gemm in entries if gemm and shape.key in missed}
        return [shape for shape, gemm in entries if gemm is None or shape.key in missed]

    def tries_wgmma(self, shape: GemmShape) -> bool:
        """Return whether products of so many rows are tried by wgmma here."""
        return not shape.experts and shape.m >= wgmma.FROM and unable(multiprocessors()) is None

    @torch.inference_mode()
    def tune(self, shapes: Sequence[GemmShape], seconds: float) -> Iterator[TunedGemm]:
        began, weights = time.monotonic(), weights_of(shapes)
        if not weights:
            return
        with refusing_overflow("tuning", "end what else uses the GPU"), compiler() as side_by_side:
            bench = Bench(Stream(), read_bandwidth())
            for first in range(0, len(weights), TOGETHER):
                some = weights[first : first + TOGETHER]
                able = [([], {}) if weight.key in self.kept else compiled(weight, side_by_side) for weight in some]
                for weight, (configs, refused) in zip(some, able, strict=True):
                    if time.monotonic() - began > seconds:
                        return
                    with bench.stream.current():
                        gemm = self.kept.get(weight.key) or bench.tuned(weight, configs, refused)
                        if isinstance(weight, GemmWeight) and self.tries_wgmma(weight.shape):
                            best = wgmma.searched(weight, gemm, side_by_side, bench.stream, multiprocessor_count())
                            gemm = replace(gemm, wgmma=best)
                    yield gemm

    @torch.inference_mode()
    def refine(self, request: StepsRequest, file: Path | None, seconds: float) -> Iterator[TunedGemm]:
        tuned, stream = Tuned.on(self.device, file), Stream()
        with refusing_overflow(f"steps of pair {request.pair.name}"), compiler() as side_by_side, stream.current():
            steps = Steps(request, tuned, stream, first_gpu())
            yield from refined(steps, side_by_side, seconds)


def compiled(weight: Weight[Config], compiler: Compiler) -> tuple[list[Config], dict[str, str]]:
    """The configurations that may be tried for `weight`, the default first; and why others may not.

    Raises BackendError where the default does not compile.
    """
    configs = (weight.default, *weight.candidates())
    launches = distinct((config, weight.launches(config)) for config in configs)
    complaints = compiler.compile(spec for of in launches.values() for spec, _ in of)
    refused = {
        config: why for config, of in launches.items() for spec, _ in of if (why := complaints[spec]) is not None
    }
    if weight.default in refused:
        raise BackendError(f"{weight}: the default configuration does not compile: {refused[weight.default]}")
    return [config for config in launches if config not in refused], {text(c): why for c, why in refused.items()}


@dataclass(frozen=True, slots=True)
class Bench:
    """Times products on `stream`, which must be current. `bandwidth`: of a plain read, bytes per second."""

    stream: Stream
    bandwidth: float

    def tuned(self, weight: Weight[Config], configs: Sequence[Config], refused: Mapping[str, str]) -> TunedGemm:
        """The fastest of `configs` that computes what it should."""
        products = weight.products(inputs_to_rotate(weight.size, l2_bytes()))
        left_out = {**refused, **wrong(weight, products, configs)}
        right = [config for config in configs if text(config) not in left_out]
        size = {rows: products[0].read_bytes(rows) for rows in ROWS}
        best, latency_us, default_us = fastest(
            right, lambda config, rows: self.latency_us(products, config, rows), size
        )
        return TunedGemm(
            n=weight.n,
            k=weight.k,
            tags=weight.tags,
            config=best.stored(),
            tried=len(right),
            left_out=left_out,
            us={rows: round(value, 3) for rows, value in latency_us.items()},
            default_us={rows: round(value, 3) for rows, value in default_us.items()},
            share=round(min(size[rows] / latency_us[rows] for rows in ROWS) / self.bandwidth * 1e6, 4),
            bandwidth=round(self.bandwidth),
            measured=datetime.now(UTC).isoformat(timespec="seconds"),
            source_sha256=code_sha256(weight.kernel),
            versions=versions(),
            experts=weight.mixture[0],
            per_token=weight.mixture[1],
        )

    def latency_us(self, products: Sequence[OnRandom[Config]], config: Config, rows: int) -> float:
        """Microseconds per launch, the mean over `products`."""
        return fmean(
            time_launches(product.launching(config, rows), product.inputs, self.stream).latency_us
            for product in products
        )


def wrong(weight: Weight[Config], products: Sequence[OnRandom[Config]], configs: Sequence[Config]) -> dict[str, str]:
    """Configuration → what is wrong. Raises BackendError where it is the default."""
    faults = {text(config): fault for product in products for config in configs if (fault := product.fault(config))}
    if (fault := faults.get(text(weight.default))) is not None:
        raise BackendError(f"{weight}: the default configuration {fault}")
    return faults


def fastest(
    configs: Sequence[Config], latency_us: Callable[[Config, int], float], size: Mapping[int, float] | None = None
) -> tuple[Config, Times, Times]:
    """The configuration with the least sum of times over `ROWS`, its times, and those of the default, `configs[0]`.

    `size`: rows → the bytes that a launch reads, for each of which its time counts where these differ.
    """
    default, each = configs[0], size or dict.fromkeys(ROWS, 1.0)
    screened = sorted(configs, key=lambda config: latency_us(config, SCREEN))[:SHORTLIST]
    times = {
        config: {rows: latency_us(config, rows) for rows in ROWS} for config in dict.fromkeys((default, *screened))
    }
    best = min(times, key=lambda config: sum(us / each[rows] for rows, us in times[config].items()))
    return best, times[best], times[default]


def text(config: GemmConfig | ExpertConfig) -> str:
    """The configuration as tuned files write it."""
    return " ".join(f"{name}={value}" for name, value in config.stored().items())


def versions() -> dict[str, str]:
    import cupy

    gpu = inventory.visible_gpu() or {}
    compiler = ".".join(map(str, cupy.cuda.nvrtc.getVersion()))
    return {
        "driver": str(gpu.get("driver") or "not told"),
        "nvrtc": compiler,
        "cupy": cupy.__version__,
        "torch": torch.__version__,
    }
