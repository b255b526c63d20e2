"""Differences that rounding alone may cause between an engine's logits and those behind a distribution.

Two engines that compute in bfloat16 have logits that differ by a few units in the last place, and 20,000 draws see a
quarter of a logit. So a policy says how many units the gap between two tokens may differ by. Where the spacing of the
logits cannot be seen, as in float32, none is granted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Final

from specgate.analysis.tokens.last_place import FEWEST, unit_of
from specgate.contract import Sampling
from specgate.contract.draws import TokenLaw

Given = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Slack:
    """Tolerance of each logit, divided by the temperature, after each beginning.

    `of`: beginning → slack. `elsewhere`: that after any other, the middle one of those that could be seen.
    """

    of: Mapping[Given, float]
    elsewhere: float

    def __bool__(self) -> bool:
        return bool(self.of)

    def after(self, beginning: Given) -> float:
        return self.of.get(beginning, self.elsewhere)


EXACT: Final = Slack({}, 0.0)


def slack_of(laws: Sequence[TokenLaw], temperature: float, ulps: float) -> Slack:
    """Convert `ulps` units of the logits behind `laws` to a tolerance.

    A gap that may differ by g leaves each of its two logits g / 2: a shift of all of them changes no probability.
    """
    if not ulps or temperature <= 0:
        return EXACT
    units = {law.given: unit for law in laws if (unit := logit_unit(law, temperature)) is not None}
    of = {beginning: ulps * unit / (2 * temperature) for beginning, unit in units.items()}
    return Slack(of, median_low(of.values()) if of else 0.0)


def logit_unit(law: TokenLaw, temperature: float) -> float | None:
    """One unit in the last place of the logits that `law` was made of; None where it cannot be seen."""
    top = sorted((p for p in law.probabilities if p > 0), reverse=True)[:FEWEST]
    return unit_of([temperature * math.log(p) for p in top])


def cut_elsewhere(laws: Sequence[TokenLaw], settings: Sampling, slack: Slack) -> bool:
    """True if rounding may make another engine rule out other tokens than `laws` do, by their rank or share.

    `slack`: of `laws`. Where so few tokens are left that none can be seen, that is not known, and counts as yes.
    """
    cuts = settings.top_p < 1 or settings.top_k > 0 or settings.min_p > 0
    return cuts and (bool(slack) or all(len(law.tokens) < FEWEST for law in laws))
