"""The matrix products of a decode step: which ones an engine runs, and what tuning has found for their weights. Nouns
only; `gemm_files.py` stores them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean

from specgate.core import PairRef


@dataclass(frozen=True, slots=True, order=True)
class GemmShape:
    """out[m][n] = Σ_k x[m][k] · weight[n][k]: a weight of `n` rows and `k` columns, and at most `m` tokens in a step.

    `tag` says which product of a step it is: EAGLE3_FC, TARGET_QKV, … A gate and an up projection are one weight.
    """

    tag: str
    n: int
    k: int
    m: int

    @property
    def weight(self) -> tuple[int, int]:
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
    """Whose steps: a baseline's and spec-`k`'s at every one of `points`."""

    pair: PairRef
    points: tuple[Point, ...]
    k: int


@dataclass(frozen=True, slots=True)
class InSteps:
    """How configurations were chosen in whole steps: those of a baseline and of spec-`k` at `points`, of a model of
    `pair`'s sizes.

    `us`: step (role and point) → microseconds with them; `before_us` with those that they have replaced or that they
    are themselves, of which `before` was the one that serves all numbers of rows.
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
        """By how much steps are shorter, the mean of their shares."""
        return 1 - fmean(us / self.before_us[step] for step, us in self.us.items())


@dataclass(frozen=True, slots=True)
class TunedGemm:
    """The fastest configuration of `tried` for the weight [n, k] on one device, at every number of rows, and those of
    `at_rows`, which differ in what changes no bit, for steps of so many rows. `left_out`: configuration → why it was
    none of those tried.

    `us` and `default_us`: rows → microseconds per launch, of this configuration and of the default one. `share` of
    `bandwidth` (bytes per second, a plain read in the same run): what reading the weight alone would take, of the
    slowest of `us`. `source_sha256`: of the kernel's code; `versions` of driver, CUDA and libraries. `in_steps`: where
    the configuration was chosen in whole steps; `us` is then of what was the fastest alone.
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
        return self.n, self.k


@dataclass(frozen=True, slots=True)
class TunedGemms:
    """What is known of one kind of device. A weight is there once."""

    device: str
    compute_capability: str
    gemms: tuple[TunedGemm, ...] = ()

    def with_(self, found: TunedGemm) -> TunedGemms:
        """`found` in place of what was known of its weight."""
        others = [gemm for gemm in self.gemms if gemm.weight != found.weight]
        gemms = tuple(sorted((*others, found), key=lambda gemm: gemm.weight))
        return TunedGemms(self.device, self.compute_capability, gemms)
