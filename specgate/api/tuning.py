"""Optional abilities of a back end: timed memory reads, tuning of products and attention, kernel benches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from specgate.api.engines import Engine
from specgate.core import PairRef, Role
from specgate.core.fmha import AttentionConfig, TileStatistics
from specgate.core.gemms import GemmShape, StepsRequest, TunedGemm
from specgate.core.kernel_bench import KernelBench, KernelBenchRequest


@runtime_checkable
class TunableEngine(Engine, Protocol):
    """An engine whose attention can be tiled in another way while it is loaded; its prompts stay."""

    def attention_config(self) -> AttentionConfig:
        """What it decodes with."""

    def attention_configs(self) -> Sequence[AttentionConfig]:
        """What is worth trying for its pair and sizes here."""

    def prepare_attention(self, configs: Sequence[AttentionConfig], roles: Sequence[Role]) -> Sequence[str | None]:
        """Compile what `roles` need under each of `configs`; why it cannot be, for those where it cannot.

        Raises UsageError for knobs and values that it does not have.
        """

    def retile_attention(self, config: AttentionConfig) -> None:
        """Decode with `config` from now on. Raises UsageError for knobs and values that it does not have."""

    def attention_tiles(self, role: Role) -> TileStatistics:
        """Of all attention of one step after the prompts."""


@dataclass(frozen=True, slots=True)
class MemoryReads:
    """Timed reads of the memory that an engine decodes from: `size` bytes, once through, every time.

    `device` as the engine's facts name it; `gpu_uuid` as NVML does, None on a CPU.
    """

    device: str
    gpu_uuid: str | None
    size: int
    elapsed_ns: tuple[int, ...]


@runtime_checkable
class ReadsMemory(Protocol):
    """What a back end has besides where it can time its device's memory, in this process."""

    def read_memory(self, repeats: int) -> MemoryReads:
        """Raises EnvironmentRefused where too little memory is free."""


class GemmTuner(Protocol):
    """Searches configurations of matrix products on the device that this process would decode on."""

    device: str
    """As the engine's facts name it."""
    compute_capability: str

    def untuned(self, shapes: Sequence[GemmShape], file: Path | None) -> Sequence[GemmShape]:
        """Those for which an engine would find no configuration: in `file` alone, else where it looks by itself."""

    def tune(self, shapes: Sequence[GemmShape], seconds: float) -> Iterator[TunedGemm]:
        """One by one, largest weights first; none is begun once `seconds` have passed.

        Raises UsageError for a tag or size that the engine does not have, BackendError where the default
        configuration computes something wrong.
        """

    def refine(self, request: StepsRequest, file: Path | None, seconds: float) -> Iterator[TunedGemm]:
        """What an engine finds, in `file` alone or where it looks by itself, chosen anew in whole steps: those weights
        that take enough of a step for a difference to be seen, the greatest first; none is begun once `seconds` have
        passed.

        Raises UsageError for a weight that is not tuned and for sizes that cannot be decoded, CheckpointError for a
        bad pair, EnvironmentRefused where the device is too small.
        """


@runtime_checkable
class TunesGemms(Protocol):
    """What a back end has besides where its matrix products are tuned."""

    def gemm_shapes(self, pair: PairRef, batches: Sequence[int], draft_lengths: Sequence[int]) -> Sequence[GemmShape]:
        """Every product of a baseline step, and of the cycles of these draft lengths, at these batches.

        Reads configs, no weights, and needs no GPU.
        """

    def gemm_tuner(self) -> GemmTuner:
        """Raises EnvironmentRefused where the device is missing."""


@runtime_checkable
class BenchesKernels(Protocol):
    """What a back end has besides where it can time the kernels of its steps one by one, in this process."""

    def bench_kernels(self, request: KernelBenchRequest) -> KernelBench:
        """Raises UsageError for sizes that it cannot decode, EnvironmentRefused where the device is missing or too
        small, BackendError (CheckpointError) for a bad pair.
        """
