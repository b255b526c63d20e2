"""The matrix products of a decode step: which ones an engine runs, and which configurations tuning has found for them.

Data classes only; `specgate.backends.eagle3.nouns.tuned_gemms` stores them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean

from specgate.contract import PairRef

Key = tuple[int | str, ...]
"""What a configuration is found by: (n, k) of a weight. Of experts also their number, how many a token has, and the
tag, since their two products are different kernels.
"""


@dataclass(frozen=True, slots=True, order=True)
class GemmShape:
    """out[m][n] = Σ_k x[m][k] · weight[n][k]: a weight of `n` rows and `k` columns, and at most `m` tokens per step.

    `tag`: which product of a step it is: EAGLE3_FC, TARGET_QKV, … A gate and an up projection count as one weight.
    `experts`: how many experts have such a weight each, of which every token has `per_token`; 0: there are no experts.
    """

    tag: str
    n: int
    k: int
    m: int
    experts: int = 0
    per_token: int = 0

    @property
    def weight(self) -> tuple[int, int]:
        """(n, k): the shape of the weight."""
        return self.n, self.k

    @property
    def key(self) -> Key:
        return key_of(self.tag, self.n, self.k, self.experts, self.per_token)

    def __str__(self) -> str:
        """Tag and weight, such as `TARGET_O 4096 x 4096`."""
        return f"{self.tag} {self.n} x {self.k}" + (f" of {self.experts} experts" if self.experts else "")


def key_of(tag: str, n: int, k: int, experts: int, per_token: int) -> Key:
    return (n, k, experts, per_token, tag) if experts else (n, k)


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

    `tags`: the products that have this weight's shape; of experts one.
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
    `experts`, `per_token`: as in `GemmShape`. Then `share` counts the weights of the experts that rows have.
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
    experts: int = 0
    per_token: int = 0

    @property
    def weight(self) -> tuple[int, int]:
        """(n, k): the shape of the weight."""
        return self.n, self.k

    @property
    def key(self) -> Key:
        return key_of(self.tags[0], self.n, self.k, self.experts, self.per_token)


@dataclass(frozen=True, slots=True)
class TunedGemms:
    """Everything that was tuned for one kind of device. Each weight is listed once."""

    device: str
    compute_capability: str
    gemms: tuple[TunedGemm, ...] = ()

    def with_(self, found: TunedGemm) -> TunedGemms:
        """A copy with `found` in the place of what was known about its weight."""
        others = [gemm for gemm in self.gemms if gemm.key != found.key]
        gemms = tuple(sorted((*others, found), key=lambda gemm: gemm.key))
        return TunedGemms(self.device, self.compute_capability, gemms)
