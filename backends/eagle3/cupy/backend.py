"""The door through which the harness reaches the built-in engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Literal

from specgate.backends.eagle3.cupy.device import OLDEST
from specgate.backends.eagle3.nouns.abilities import GemmTuner
from specgate.backends.eagle3.nouns.gemms import GemmShape
from specgate.backends.eagle3.nouns.kernel_bench import KernelBench, KernelBenchRequest
from specgate.contract import PairRef
from specgate.contract.protocols import Availability, Engine, MemoryReads, OpenRequest
from specgate.machine import inventory


class CupyBackend:
    """The back end `cupy`: the default where a CUDA GPU, CuPy and torch are present.

    Everything below is imported inside its methods, so that asking whether it is available stays cheap.
    """

    name = "cupy"
    description = "EAGLE-3 on NVIDIA GPUs: CUDA kernels of its own, whole cycles in graphs, bit-exact speculation"

    bit_exact: Literal[True] = True
    samples: Literal[True] = True
    logit_options: tuple[str, ...] = ("kv",)
    draft_options: tuple[str, ...] = ("capture", "draft_kv")
    other_drafts: tuple[str, ...] = ("specpv", "tape", "tree")

    def available(self) -> Availability:
        missing = [name for name in ("cupy", "torch") if find_spec(name) is None]
        if missing:
            how = "in specgate's checkout: pip install '.[cuda13]'"
            return Availability(False, f"{' and '.join(missing)} not installed ({how})")
        if not inventory.has_cuda_gpu():
            return Availability(False, "no CUDA GPU, or no NVIDIA driver")
        capability = inventory.compute_capability()
        if capability is not None and capability < OLDEST:
            actual, needed = (f"{major}.{minor}" for major, minor in (capability, OLDEST))
            return Availability(False, f"the GPU has compute capability {actual}, but {needed} is needed (sm_80)")
        return Availability(True, "a CUDA GPU is present", rank=20)

    def gpus(self, options: Mapping[str, str]) -> int:
        ranks_text = options.get("tp", "1")
        return int(ranks_text) if ranks_text.isdecimal() and ranks_text != "0" else 1

    def tuning(self, pair: str) -> Sequence[str]:
        return ("engine", "tune", "gemm", "--missing", "--pair", pair)

    def open(self, request: OpenRequest) -> Engine:
        from specgate.backends.eagle3.cupy.engine.open import open_engine

        return open_engine(request)

    def read_memory(self, repeats: int) -> MemoryReads:
        from specgate.backends.eagle3.cupy.bench.timing import read_memory

        return read_memory(repeats)

    def bench_kernels(self, request: KernelBenchRequest) -> KernelBench:
        from specgate.backends.eagle3.cupy.bench.run import bench_kernels

        return bench_kernels(request)

    def gemm_shapes(self, pair: PairRef, batches: Sequence[int], draft_lengths: Sequence[int]) -> Sequence[GemmShape]:
        from specgate.backends.eagle3.cupy.bench.synthetic import Geometry
        from specgate.backends.eagle3.cupy.tuning.search import gemm_shapes

        return gemm_shapes(Geometry.of(pair, drafts=bool(draft_lengths)), batches, draft_lengths)

    def gemm_tuner(self) -> GemmTuner:
        from specgate.backends.eagle3.cupy.tuning.search import Tuner

        return Tuner()


BACKEND = CupyBackend()
