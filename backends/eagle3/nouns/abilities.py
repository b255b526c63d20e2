"""Optional abilities of a back end: tuning of matrix products, and kernel benches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from specgate.backends.eagle3.nouns.gemms import GemmShape, StepsRequest, TunedGemm
from specgate.backends.eagle3.nouns.kernel_bench import KernelBench, KernelBenchRequest
from specgate.contract import PairRef


class GemmTuner(Protocol):
    """Searches configurations of matrix products for the device that this process would decode on."""

    device: str
    """As in `EngineFacts.device`."""
    compute_capability: str

    def untuned(self, shapes: Sequence[GemmShape], file: Path | None) -> Sequence[GemmShape]:
        """The shapes for which an engine would find no configuration, or none that was tried for so many rows.

        It looks in `file` alone; where that is None, wherever it looks by itself. What of these has a configuration
        keeps it: `tune` adds to it.
        """

    def tune(self, shapes: Sequence[GemmShape], seconds: float) -> Iterator[TunedGemm]:
        """Tune one weight after the other, the largest first. No weight is begun once `seconds` have passed.

        Raises UsageError for a tag or size that the engine does not have, and BackendError where the default
        configuration computes a wrong result.
        """

    def refine(self, request: StepsRequest, file: Path | None, seconds: float) -> Iterator[TunedGemm]:
        """Choose the configurations of a pair's weights again, by timing whole steps instead of single products.

        The configurations so far come from `file` alone; where that is None, from wherever the engine looks by itself.
        Only weights that take enough of a step for a difference to show are tried, the one that takes most first. No
        weight is begun once `seconds` have passed.

        Raises UsageError for a weight that is not tuned and for sizes that cannot be decoded, CheckpointError for a bad
        pair, and EnvironmentRefused where the device is too small.
        """


@runtime_checkable
class TunesGemms(Protocol):
    """Optional for a back end: its matrix products can be tuned."""

    def gemm_shapes(self, pair: PairRef, batches: Sequence[int], draft_lengths: Sequence[int]) -> Sequence[GemmShape]:
        """Every matrix product of a baseline step and of the cycles with these draft lengths, at these batch sizes.

        It reads configuration files but no weights, and needs no GPU.
        """

    def gemm_tuner(self) -> GemmTuner:
        """A tuner for this process's device. Raises EnvironmentRefused where the device is missing."""


@runtime_checkable
class BenchesKernels(Protocol):
    """Optional for a back end: time the kernels of its steps one by one, in this process."""

    def bench_kernels(self, request: KernelBenchRequest) -> KernelBench:
        """Time the kernels of `request`.

        Raises UsageError for sizes that cannot be decoded, EnvironmentRefused where the device is missing or too small,
        and BackendError (CheckpointError) for a bad pair.
        """
