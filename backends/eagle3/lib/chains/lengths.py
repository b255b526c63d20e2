"""Length of a chain: the role's, or a shorter one if the draft is unsure or many requests run.

A shorter chain changes no token: whatever is proposed, what is emitted is the target's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from specgate.backends.eagle3.lib.chains.table import ChainTable, table_of
from specgate.errors import UsageError

CONFIDENCE: Final = "confidence"
BY_BATCH: Final = "k_by_batch"
GREEDY_ALONE: Final = "it is a chain of greedy tokens"
"""Why `CONFIDENCE` does not go with sampling."""


@dataclass(frozen=True, slots=True)
class ChainLengths:
    """`confidence`: a chain ends behind the first token up to which the product of the draft's probabilities falls
    below this; None: it does not end for that. `table`: the most draft tokens by how many requests run; None: as the
    role says.
    """

    confidence: float | None = None
    table: ChainTable | None = None

    def most(self, k: int, running: int) -> int:
        """The longest chain of a step of spec-`k` in which so many requests run."""
        return min(k, self.table.most(running)) if self.table else k

    @property
    def words(self) -> str:
        """For the facts that an engine states of itself."""
        parts = [] if self.confidence is None else [f"while the draft is {self.confidence:g} sure"]
        return ", ".join((*parts, *([f"by batch {self.table}"] if self.table else [])))

    @property
    def warning(self) -> str:
        """For readers of an engine's figures."""
        return f"chains may end before N tokens of spec-N ({self.words}): the acceptance length is of shorter chains"


def lengths_of(options: Mapping[str, str]) -> ChainLengths | None:
    """Read the options for chain lengths; None if there are none. Raises UsageError for values that make no sense."""
    if CONFIDENCE not in options and BY_BATCH not in options:
        return None
    for name, why in (("tree", "it has its own shape"), ("tape", "it has the accept counts of whole chains")):
        if name in options:
            option = CONFIDENCE if CONFIDENCE in options else BY_BATCH
            raise UsageError(f"option {option} with {name} = {options[name]}: {why}", hint="leave one of them out")
    if CONFIDENCE in options and options.get("drafter", "eagle3") != "eagle3":
        raise UsageError(
            f"option {CONFIDENCE} with drafter = {options['drafter']}: a stand-in has no probabilities",
            hint="leave one of them out",
        )
    return ChainLengths(
        share(options[CONFIDENCE]) if CONFIDENCE in options else None,
        table_of(options[BY_BATCH], f"option {BY_BATCH}") if BY_BATCH in options else None,
    )


def share(text: str) -> float:
    """The probability that `text` is. Raises UsageError for what is not above 0 and below 1."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < 1:
        raise UsageError(f"option {CONFIDENCE} = {text}: not a probability", hint="above 0 and below 1, such as 0.3")
    return value
