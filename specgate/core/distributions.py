"""What a median does not show: how the samples of a cell are spread, and how they go with depth. Nouns only."""

from __future__ import annotations

from dataclasses import dataclass


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
