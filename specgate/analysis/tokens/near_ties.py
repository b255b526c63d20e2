"""The law of near ties: standardised gaps at the places where texts part, and two tests over them.

An engine that is not bit-exact rounds. Where it chooses the lower of two tokens, their gap is small beside its rounding
error σ of one logit. The gap divided by √2·σ is at most half-normal for every engine that only rounds.

σ comes from what the engine itself shows of its most likely tokens, by one of three rules:

A   beside logits of the same weights in float32
B   beside a second pass of the same engine over the same text
C   from a second engine in the engine's number format beside the same in float32, times 1.5
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

LawRule = Literal["A", "B", "C"]


class ShowsCandidates(Protocol):
    """What is known of the most likely tokens of one place; see `contract.Margin`."""

    @property
    def top(self) -> Sequence[float]: ...
    @property
    def top_tokens(self) -> Sequence[int]: ...
    @property
    def again(self) -> Sequence[float]: ...
    @property
    def float32(self) -> Sequence[float]: ...
    @property
    def second(self) -> Sequence[float]: ...


@dataclass(frozen=True, slots=True)
class Sight:
    """One place as far as it is seen.

    `gap`: how far the lower of the two tokens lies below the largest logit, in logits; infinite where one of them is
        not among the most likely ones, None where nothing is shown.
    `variance`: estimate of σ², the squared rounding error of one logit; None where nothing tells it.
    `freedom`: its degrees of freedom.
    `rule`: the rule that gave gap and variance.
    """

    gap: float | None
    variance: float | None = None
    freedom: int = 0
    rule: LawRule | None = None


def gap_to(tokens: Sequence[int], values: Sequence[float], of: Sequence[int]) -> float:
    """Return how far the lowest of `tokens` lies below the largest of `values`, whose tokens are `of`."""
    by_token = dict(zip(of, values, strict=False))
    return max(max(values) - by_token.get(token, -math.inf) for token in tokens)
