"""Mean gap between the two tokens at the places where texts diverge.

Rounding makes texts part where two tokens are nearly tied, the more rarely the further they lie apart. An engine that
takes a draft as soon as it is near the best one (relaxed or typical acceptance) parts at all gaps up to its limit. Each
place by itself may be either; the mean over many tells them apart.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from specgate.analysis.stats import t_quantile
from specgate.contract import Divergence

FEWEST: Final = 8
"""Places that it takes: the interval of a mean of fewer is as wide as what is to be told apart."""
CONFIDENCE: Final = 0.999
"""Of the lower bound, on one side. `python -m bench.simulations.parting_simulation` has what it amounts to."""


@dataclass(frozen=True, slots=True)
class MeanGap:
    """The mean gap in units in the last place, over `places` different places where texts part, and a bound that the
    true mean lies above.
    """

    places: int
    mean: float
    at_least: float


def mean_gap(divergences: Iterable[Divergence]) -> MeanGap | None:
    """The mean over places whose gap and unit are known; None where these are fewer than `FEWEST`.

    Rounds over the same prompts that part alike are one place.
    """
    gaps_by_place = {d.key: d.margin / d.unit for d in divergences if d.margin is not None and d.unit}
    if len(gaps_by_place) < FEWEST:
        return None
    gaps = in_larger_units(list(gaps_by_place.values()))
    mean, error = statistics.fmean(gaps), statistics.stdev(gaps) / math.sqrt(len(gaps))
    return MeanGap(len(gaps), mean, mean - t_quantile(CONFIDENCE, len(gaps) - 1) * error)


def in_larger_units(gaps: Sequence[float]) -> list[float]:
    """The gaps; where even ones prevail over odd ones, as many of the largest even ones are halved as are too many.

    Where the logits shown at a place straddle a power of two, the unit is that of the smaller ones (`last_place`), and
    the two tokens may lie on a grid twice as coarse. Their gap is then even. On their own grid, rounding makes odd and
    even gaps about equally often.
    """
    even = sorted((gap for gap in gaps if round(gap) % 2 == 0), reverse=True)
    odd = [gap for gap in gaps if round(gap) % 2]
    surplus = max(0, len(even) - len(odd))
    return [*odd, *(gap / 2 for gap in even[:surplus]), *even[surplus:]]
