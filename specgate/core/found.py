"""What the samples amount to: figures, divergences, cells and comparisons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from specgate.core.acceptance import AcceptanceRecord
from specgate.core.asked import Cell


@dataclass(frozen=True, slots=True)
class Value:
    """One figure.

    `stat`: which statistic it is, such as `p50`, `mean` or `tok_weighted`.
    `n`: how many samples it rests on.
    `reason_code`: why there is no value, or no interval around it.

    `specgate.core.metrics.METRICS` has the unit of each metric.
    """

    metric: str
    value: float | None
    stat: str = "value"
    n: int = 1
    ci_low: float | None = None
    ci_high: float | None = None
    reason_code: str | None = None


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first token at which a speculative block differs from its baseline block in one slot.

    `position`: index into the slot's tokens.
    `margin`: the target's top-1 − top-2 logit (float32) at that position, teacher-forced along the baseline; None where
        not recorded.
    `near_tie`: whether the margin is so small that the two batch shapes cannot be expected to agree.
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
    """Top-2 logits of the target where a spec block differs from the baseline: evidence for or against a near tie."""

    cell: str
    prompt_set: int
    round: int
    slot: int
    position: int
    top1: float
    top2: float


@dataclass(frozen=True, slots=True)
class TokenCheck:
    """Spec tokens compared with the baseline tokens of the timed blocks, over the length that both have."""

    compared_tokens: int
    divergences: tuple[Divergence, ...]

    @property
    def identical(self) -> bool:
        """Whether no sequence differs."""
        return not self.divergences

    @property
    def mismatches(self) -> tuple[Divergence, ...]:
        """The divergences that no near tie explains."""
        return tuple(d for d in self.divergences if not d.near_tie)


@dataclass(frozen=True, slots=True)
class Distribution:
    """Order statistics of `n` samples: `values` are at evenly spaced ranks, from the smallest sample to the largest."""

    n: int
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class DepthBin:
    """The steps of a cell that began within one range of depth. Depth is the number of tokens in the cache beyond the
    prompt.

    `depth`: the mean over these steps.
    `step_ms`: the median step time; None where times are withheld.
    `drafted_steps`: request-steps that had a draft.
    `acceptance_length`: over `drafted_steps`, with an interval over prompts; None where there were none.
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
    """What the blocks of one cell amount to.

    `reason`: why `status` is not `ok`; None where it is.
    `reason_code`: which kind of contradiction its records hold; None where they hold none.
    """

    cell: Cell
    status: Literal["ok", "partial", "failed"]
    reason: str | None
    blocks: int
    acceptance: AcceptanceRecord | None
    values: Mapping[str, Value]
    series_ms: tuple[tuple[int, int, float], ...]
    """Per block: (round of the point in running order, position in round, decode milliseconds per emitted token)."""
    by_depth: tuple[DepthBin, ...] = ()
    """From the shallowest steps to the deepest."""
    distributions: Mapping[str, Distribution] = field(default_factory=dict)
    """Metric → times of single requests: `tpot_ms`, and `ttft_ms` in full runs."""
    reason_code: str | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """A spec cell compared with the baseline cell of its point, over pairs of blocks.

    `log_ratios`: ln(spec / baseline) of the tokens per second, one entry per pair.
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
