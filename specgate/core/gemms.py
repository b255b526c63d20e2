"""The matrix products of a decode step: which ones an engine runs, and which configurations tuning has found for them.

Data classes only; `specgate.machine.tuned_gemms` stores them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean

from specgate.core import PairRef


@dataclass(frozen=True, slots=True, order=True)
class GemmShape:
    """out[m][n] = Σ_k x[m][k] · weight[n][k]: a weight of `n` rows and `k` columns, and at most `m` tokens per step.

    `tag`: which product of a step it is: EAGLE3_FC, TARGET_QKV, … A gate and an up projection count as one weight.
    """

    tag: str
    n: int
    k: int
    m: int

    @property
    def weight(self) -> tuple[int, int]:
        """(n, k): the shape of the weight."""
        return self.n, self.k


@dataclass(frozen=True, slots=True)
class Point:
    """`batch` slots of `context` cached positions each."""

    context: int
    batch: int

    def __str__(self) -> str:
        return f"{self.batch} x {self.context}"


@dataclass(frozen=True, slots=True)
class StepsRequest:
    """Whose steps are timed: those of the baseline and of spec-`k`, at every one of `points`."""

    pair: PairRef
    points: tuple[Point, ...]
    k: int


@dataclass(frozen=True, slots=True)
class InSteps:
    """How a configuration was chosen by timing whole steps: those of the baseline and of spec-`k` at `points`, of a
    model with the sizes of `pair`.

    `before`: the configuration that was in use before. It may have been kept.
    `before_us`: step (role and point) → microseconds per step with what was in use before.
    `us`: step → microseconds per step with the chosen configuration.
    `tried`: how many configurations were tried.
    `measured`: when, in ISO 8601.
    """

    pair: str
    points: tuple[Point, ...]
    k: int
    before: Mapping[str, int]
    before_us: Mapping[str, float]
    us: Mapping[str, float]
    tried: int
    measured: str

    @property
    def gain(self) -> float:
        """By which share the steps became shorter, as a mean over the steps."""
        return 1 - fmean(us / self.before_us[step] for step, us in self.us.items())


@dataclass(frozen=True, slots=True)
class TunedGemm:
    """The fastest configuration found for the weight [n, k] on one device.

    `tags`: the products that have this weight's shape.
    `config`: the configuration for every number of rows, except those in `at_rows`.
    `tried`: how many configurations were timed.
    `left_out`: configuration → why it was not timed.
    `us`, `default_us`: rows → microseconds per launch, with this configuration and with the default one.
    `share`: the time to read the weight alone at `bandwidth`, as a share of the slowest of `us`.
    `bandwidth`: bytes per second of a plain read in the same run.
    `source_sha256`: SHA-256 of the kernel's code.
    `versions`: of driver, CUDA and libraries.
    `in_steps`: how the configuration was chosen in whole steps; None where its products were only timed alone. With it,
        `us` still describes the configuration that was fastest alone.
    `at_rows`: rows → the configuration for steps of that many rows. It differs from `config` only in settings that
        change no bit of the result.
    """

    n: int
    k: int
    tags: tuple[str, ...]
    config: Mapping[str, int]
    tried: int
    left_out: Mapping[str, str]
    us: Mapping[int, float]
    default_us: Mapping[int, float]
    share: float
    bandwidth: float
    measured: str
    source_sha256: str
    versions: Mapping[str, str]
    in_steps: InSteps | None = None
    at_rows: Mapping[int, Mapping[str, int]] = field(default_factory=dict)

    @property
    def weight(self) -> tuple[int, int]:
        """(n, k): the shape of the weight."""
        return self.n, self.k


@dataclass(frozen=True, slots=True)
class TunedGemms:
    """Everything that was tuned for one kind of device. Each weight is listed once."""

    device: str
    compute_capability: str
    gemms: tuple[TunedGemm, ...] = ()

    def with_(self, found: TunedGemm) -> TunedGemms:
        """A copy with `found` in the place of what was known about its weight."""
        others = [gemm for gemm in self.gemms if gemm.weight != found.weight]
        gemms = tuple(sorted((*others, found), key=lambda gemm: gemm.weight))
        return TunedGemms(self.device, self.compute_capability, gemms)
