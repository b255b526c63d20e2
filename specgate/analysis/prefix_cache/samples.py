"""Requests with the prefix cache on and off, and their answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from specgate.contract import NearTies

Turn = Literal["first", "shared prefix", "next turn"]
"""`first`: its prefix is new to the server. `shared prefix`: an earlier request of its group began alike. `next turn`:
it begins with the prompt of an earlier request of its group and the answer to that.
"""


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to one request. `cached`: prompt tokens that came from the cache; None where the server does not say.
    `ttft_ns`: nanoseconds from its sending to its first token. `tokens`: ids, from the first token on.
    """

    cached: int | None
    ttft_ns: int
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """One request, answered by both roles with the cache on and off.

    `group`: requests of one group share a prefix. `reusable`: with how many tokens its prompt begins that the server
    has been sent or has emitted before. `answered`: how many of these are of an earlier answer, so that their keys and
    values were computed while decoding. `on`, `off`: role name → its answer.
    `same_text`: whether each role's own earlier answer is the one that a `next turn` goes on from; where a role's text
    had left it, less can be reused, and the request says nothing of reuse.
    """

    group: int
    turn: Turn
    prompt_tokens: int
    reusable: int
    on: Mapping[str, Reply]
    off: Mapping[str, Reply]
    same_text: bool = True
    answered: int = 0

    @property
    def about_reuse(self) -> bool:
        """True if part of it can be reused, and as much in both roles."""
        return self.turn != "first" and self.same_text

    def of_answer(self, role: str) -> int:
        """Tokens of the earlier answer that `role` took from the cache."""
        return max(0, (self.on[role].cached or 0) - (self.reusable - self.answered)) if self.answered else 0


@dataclass(frozen=True, slots=True)
class CacheDivergence:
    """Divergence of a text with the cache on from the one with it off: token `position` of request `sample`.

    `gap`: how far the lower of both tokens lies below the largest logit there, infinite where it is not among those
    that the server shows; None where the server shows none.
    `unit`: one unit in the last place there; None where it could not be seen.
    """

    role: str
    sample: int
    position: int
    gap: float | None
    unit: float | None


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a check.

    `max_lost_tokens`: prompt tokens that a request may reuse less with speculation than without.
    `max_ttft_loss`: share of the time to first token that the cache may save less with speculation.
    `ties`: which divergences of texts are near ties.
    """

    max_lost_tokens: int
    max_ttft_loss: float
    ties: NearTies
