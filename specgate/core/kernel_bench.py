"""What a benchmark of single kernels asks and finds: the nouns, and nothing that runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from specgate.core import PairRef, Role

SCHEMA: Final = "specgate.kernel-bench/v1"


@dataclass(frozen=True, slots=True)
class KernelBenchRequest:
    """Whose kernels are timed: the steps of `roles` of `pair`, over `batch` slots of `context` cached positions."""

    pair: PairRef
    context: int
    batch: int
    roles: tuple[Role, ...]


@dataclass(frozen=True, slots=True)
class PeerTiming:
    """A library's kernel for the same product or attention: microseconds per launch, or why there are none."""

    name: str
    us: float | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class KernelTiming:
    """One kernel of a step of `role`, timed alone in a CUDA graph, after its result was compared with an oracle's.

    `tag`: whose it is; `function`: its name on the device; `per_step`: launches of this shape in a step. `us`:
    microseconds per launch, the median over replays; `spread`: between their quartiles, as a share of it. `size`: bytes
    that a launch must move. `error`: ‖found − oracle‖ / ‖oracle‖, which `tolerance` bounds; infinite where results that
    must be equal are not.
    """

    role: str
    tag: str
    function: str
    shape: str
    per_step: int
    us: float
    spread: float
    size: int
    error: float
    tolerance: float
    peers: tuple[PeerTiming, ...] = ()

    @property
    def right(self) -> bool:
        return self.error <= self.tolerance  # NaN is not

    @property
    def bytes_per_s(self) -> float:
        return self.size / self.us * 1e6


@dataclass(frozen=True, slots=True)
class KernelBench:
    """`bytes_per_s`: the read bandwidth that was measured in the same run; `l2_bytes`: what inputs had to outgrow."""

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

    def share(self, kernel: KernelTiming) -> float:
        """Of the bandwidth that reading alone has."""
        return kernel.bytes_per_s / self.bytes_per_s

    def roles(self) -> Iterator[tuple[str, tuple[KernelTiming, ...]]]:
        """The kernels of each role's step."""
        for role in dict.fromkeys(k.role for k in self.kernels):
            yield role, tuple(k for k in self.kernels if k.role == role)


def step_us(kernels: tuple[KernelTiming, ...]) -> float:
    """What the launches of a step take together, each as fast as it is alone."""
    return sum(k.us * k.per_step for k in kernels)
