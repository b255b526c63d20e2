"""Drawn texts, as they are stored. Texts are counted: their order says nothing, since each is a request of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from specgate.contract.types import Counts, Share


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
