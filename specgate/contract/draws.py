"""Texts drawn at a temperature, and how well they fit the target's distribution."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from specgate.contract.types import Counts, Share

Against = Literal["target", "own", "baseline"]


@dataclass(frozen=True, slots=True)
class Allowance:
    """By how many units in the last place the gap between two logits may differ.

    `another`: from that of the engine that is asked second. `own`: from one pass of the engine to the next, as of an
    engine whose logits depend on what shares a pass; 0 for one that is bit-exact.
    """

    another: float = 0.0
    own: float = 0.0


@dataclass(frozen=True, slots=True)
class FitTest:
    """A chi-square and a G test of one token of the texts.

    `position`: index of the token in the text. From 1 on, each beginning is tested by itself, and the sums are taken.
    `against`: the target's distribution as another engine shows it, as the engine itself does, or the baseline's draws.
    `draws`: draws of the role that take part. `contexts`: beginnings that do. `freedom`: degrees of freedom.
    `chi_square`, `g`: the two statistics. `p_chi_square`, `p_g`: the chance of one as large where nothing is wrong.
    `slack`: how far each logit, divided by the temperature, may be off; the largest of all contexts.
    `impossible`: draws of tokens that the target never draws, but for rounding. `p_impossible`: the chance of so many.
    """

    position: int
    against: Against
    draws: int
    contexts: int
    freedom: int
    chi_square: float
    g: float
    p_chi_square: float
    p_g: float
    impossible: int = 0
    p_impossible: float = 1.0
    slack: float = 0.0

    @property
    def p(self) -> float:
        """The larger of the two chances; or that of so many impossible draws, twice, where there are any.

        Only what both statistics find too large is rejected: in bins that expect few draws either has a tail that is
        heavier than it says, chi-square above and G below what is expected.
        """
        fits = max(self.p_chi_square, self.p_g)
        return min(1.0, 2 * min(fits, self.p_impossible)) if self.impossible else fits


@dataclass(frozen=True, slots=True)
class DrawCheck:
    """Result of the tests of a cell's draws.

    `draws`: texts that were drawn. `law_engine`, `own_engine`, `unshown`, `undrawn`: as in `DrawnTexts`.
    """

    draws: int
    tests: tuple[FitTest, ...]
    law_engine: str | None = None
    unshown: str | None = None
    undrawn: str | None = None
    own_engine: str | None = None

    @property
    def p(self) -> float:
        """The smallest chance of all tests, times their number: an upper bound of the chance that any is as small."""
        return min((1.0, *(len(self.tests) * test.p for test in self.tests)))

    @property
    def worst(self) -> FitTest | None:
        """The test with the smallest chance; None where there is none."""
        return min(self.tests, key=lambda test: test.p, default=None)


@dataclass(frozen=True, slots=True)
class TokenLaw:
    """The target's distribution of the token that follows the prompt and the tokens `given`.

    `tokens`, `probabilities`: of the likely ones. All others together have what is left to 1.
    """

    given: Counts
    tokens: Counts
    probabilities: tuple[Share, ...]

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.probabilities):
            raise ValueError(f"{len(self.tokens)} tokens, but {len(self.probabilities)} probabilities")
        if sum(self.probabilities) > 1 + 1e-6:
            raise ValueError(f"the probabilities sum to {sum(self.probabilities):.6g}, more than 1")


@dataclass(frozen=True, slots=True)
class DrawnTexts:
    """Texts that an engine drew after one prompt, for every role of a point, after all timing.

    `texts`: role → (tokens, how often they were drawn), the text that comes first in the order of its tokens first.
    `laws`: of the beginnings that were drawn often. `law_engine`: which other engine they come from. `unshown`: why
        there are none; None where there are.
    `own_laws`, `own_engine`, `own_unshown`: the same of the engine that drew, asked itself.
    `undrawn`: why nothing was drawn; None where something was.
    `span_ns`: as in `Block`.
    """

    point: str
    prompt: tuple[int, ...]
    texts: Mapping[str, tuple[tuple[tuple[int, ...], int], ...]]
    laws: tuple[TokenLaw, ...]
    law_engine: str | None
    unshown: str | None
    undrawn: str | None
    span_ns: tuple[int, int]
    own_laws: tuple[TokenLaw, ...] = ()
    own_engine: str | None = None
    own_unshown: str | None = None
