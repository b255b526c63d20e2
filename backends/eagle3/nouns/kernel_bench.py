"""Requests and results of a benchmark of single kernels, or of a prefill's parts. Data classes only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from specgate.contract import PairRef, Role

SCHEMA: Final = "specgate.kernel-bench/v1"


@dataclass(frozen=True, slots=True)
class KernelBenchRequest:
    """Whose kernels are timed: those of the steps of `roles` of `pair`, with `batch` slots of `context` cached
    positions. `options`: of the engine, as for a run.
    """

    pair: PairRef
    context: int
    batch: int
    roles: tuple[Role, ...]
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PeerTiming:
    """A library's kernel for the same product or attention.

    `us`: microseconds per launch; None where there is no timing, for the reason given.
    """

    name: str
    us: float | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class KernelTiming:
    """One kernel of a step of `role`, timed alone in a CUDA graph.

    `tag`: the operation of the step that it serves.
    `function`: its name on the device.
    `per_step`: launches of this shape in one step.
    `us`: microseconds per launch, the median over replays, or calls.
    `spread`: interquartile range as a share of the median.
    `size`: bytes that a launch must move.
    """

    role: str
    tag: str
    function: str
    shape: str
    per_step: int
    us: float
    spread: float
    size: int
    peers: tuple[PeerTiming, ...] = ()

    @property
    def bytes_per_s(self) -> float:
        """The bandwidth that a launch achieved."""
        return self.size / self.us * 1e6


@dataclass(frozen=True, slots=True)
class KernelBench:
    """The timed kernels of a pair on one device.

    `measured`: when, in ISO 8601.
    `bytes_per_s`: the read bandwidth measured in the same run.
    `l2_bytes`: the size of the caches, which the inputs had to exceed: a GPU's L2, or all of a CPU's last level.
    `seconds`: how long the whole bench took.
    `options`: of the engine, as they were asked for.
    """

    measured: str
    device: str
    pair: str
    context: int
    batch: int
    bytes_per_s: float
    l2_bytes: int
    seconds: float
    kernels: tuple[KernelTiming, ...]
    versions: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)

    def share(self, kernel: KernelTiming) -> float:
        """The kernel's bandwidth as a share of the plain read bandwidth."""
        return kernel.bytes_per_s / self.bytes_per_s

    def roles(self) -> Iterator[tuple[str, tuple[KernelTiming, ...]]]:
        """(role, kernels of its step), for each role."""
        for role in dict.fromkeys(k.role for k in self.kernels):
            yield role, tuple(k for k in self.kernels if k.role == role)


def step_us(kernels: tuple[KernelTiming, ...]) -> float:
    """Microseconds that the launches of a step take together, each as fast as it is alone."""
    return sum(k.us * k.per_step for k in kernels)
