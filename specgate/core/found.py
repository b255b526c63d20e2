"""What the samples amount to: figures, divergences, cells and comparisons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from specgate.core.acceptance import AcceptanceRecord
from specgate.core.asked import Cell


@dataclass(frozen=True, slots=True)
class Value:
    """One figure. `reason_code` says why there is no value, or no interval around it. Units: `metrics.METRICS`."""

    metric: str
    value: float | None
    stat: str = "value"
    n: int = 1
    ci_low: float | None = None
    ci_high: float | None = None
    reason_code: str | None = None


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first token at which a speculative block leaves the baseline.

    `margin` is the target's top-1 − top-2 logit (float32) at that position, teacher-forced along the baseline;
    `near_tie` is true where the margin is too small for the two batch shapes to be expected to agree.
    """

    prompt_set: int
    round: int
    slot: int
    position: int
    expected: int
    got: int
    margin: float | None
    near_tie: bool


@dataclass(frozen=True, slots=True)
class Margin:
    """Top-2 logits of the target where a spec block left the baseline: evidence for or against a near tie."""

    cell: str
    prompt_set: int
    round: int
    slot: int
    position: int
    top1: float
    top2: float


@dataclass(frozen=True, slots=True)
class TokenCheck:
    """Spec tokens against baseline tokens of the timed blocks, over the length both have."""

    compared_tokens: int
    divergences: tuple[Divergence, ...]

    @property
    def identical(self) -> bool:
        return not self.divergences

    @property
    def mismatches(self) -> tuple[Divergence, ...]:
        return tuple(d for d in self.divergences if not d.near_tie)


@dataclass(frozen=True, slots=True)
class Distribution:
    """`values`: order statistics of `n` samples at evenly spaced ranks, the least and the greatest among them."""

    n: int
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class DepthBin:
    """The steps of a cell that began within one range of depth: tokens in the cache beyond the prompt.

    `depth` is their mean, `step_ms` the median step. `acceptance_length` is over the `drafted_steps` request-steps
    that had a draft, with an interval over prompts; None where none had.
    """

    depth: float
    steps: int
    step_ms: float | None
    drafted_steps: int
    acceptance_length: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None


@dataclass(frozen=True, slots=True)
class CellResult:
    """What the blocks of one cell amount to. `reason` is set where `status` is not `ok`."""

    cell: Cell
    status: Literal["ok", "partial", "failed"]
    reason: str | None
    blocks: int
    acceptance: AcceptanceRecord | None
    values: Mapping[str, Value]
    series_ms: tuple[tuple[int, int, float], ...]
    """(round of the whole point in running order, slot in the round, milliseconds per emitted token) per block."""
    by_depth: tuple[DepthBin, ...] = ()
    """From the shallowest steps to the deepest."""
    distributions: Mapping[str, Distribution] = field(default_factory=dict)
    """Metric → the times of single requests: `tpot_ms`, in full runs `ttft_ms` too."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A spec cell against the baseline cell of its point, over pairs of blocks. `log_ratios` are ln(spec/base)
    tok/s.
    """

    cell: Cell
    tokens: TokenCheck
    log_ratios: tuple[float, ...]
    orders: tuple[int, ...]
    """+1 where the baseline block of the pair ran first, -1 where the spec block did."""
    prompt_sets: tuple[int, ...]
    turns: tuple[int, ...]
    """The round of each pair, counted over the whole point in running order."""
    speedup: Value
