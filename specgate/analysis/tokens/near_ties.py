"""The law of near ties: standardised gaps at the places where texts part, and two tests over them.

An engine that is not bit-exact rounds. Where it chooses the lower of two tokens, their gap is small beside the standard
deviation σ of its rounding error of one logit. If all gaps near 0 are equally frequent, the gap divided by √2·σ is at
most half-normal for every engine that only rounds, whatever share of the error all its passes have in common.

σ comes from what the engine shows of its most likely tokens, by one of three rules, the first one that there is:

B   beside a second pass of the same engine over the same text, or, where float32 was not asked either, beside a second
    engine's; the gap is the one that the engine shows
A   beside logits of the same weights in float32, which have the gap, too
C   nothing is shown: a second engine in the run's number format beside the same in float32, times `MIMIC`

To a variance by A or B a grid's own is added: where logits lie on a grid, both passes have most of its error in common.
The largest of the shown logits may lie on a grid of two or four times the others' unit. So a gap that an engine shows
and that is two or four units is taken for one, if the largest all lie on that grid (B).

Arrays have places along their last axis, so that a simulation can judge many cells at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from specgate.analysis.tokens.last_place import TOLERANCE, unit_of
from specgate.contract import TieLaw
from specgate.contract.token_check import ShownPlace, TieRule

Floats = NDArray[np.float64]
PARTED: Final = 0.0035
"""Chance per run that places where speculative texts part are called wrong though the engine only rounds."""
REPEATED: Final = 0.00025
"""The same of places where cells of one role leave their own earlier texts."""
SCORED: Final = 0.001
"""The same of tokens that a second engine scores, if their gaps were half-normal. They are smaller."""
PRIOR: Final = 8.0
"""Degrees of freedom of the cell's median variance beside a place's own."""
LEAST_PLACES: Final = 3
"""Places of a cell that its median takes."""
LEAST_FREEDOM: Final = 9
"""Degrees of freedom that tell the variance of a place alone."""
SEEN: Final = (1 + 5 / 6) * 1.15
"""Second moment of a gap that one pass of the engine shows, where two others chose differently, in units of 2·σ² of
passes without a common error: 1, and 5/6 of the true gap. The rest allows for tails.
"""
LARGEST: Final = 4
"""Values that tell whether the largest lie on a coarser grid than the rest: by chance, these do once in four times."""
MIMIC: Final = 1.5
"""How much more an engine may round than a second engine in the same number format."""


@dataclass(frozen=True, slots=True)
class Sight:
    """One place as far as it is seen.

    `gap`: distance of the two tokens in logits; None where nothing is shown.
    `outside`: one of them is not among the most likely ones, and `gap` is the distance of these: theirs is no smaller.
    `variance`: estimate of σ², the squared rounding error of one logit; None where nothing tells it.
    `freedom`: its degrees of freedom.
    `rule`: the rule that gave them.
    """

    gap: float | None = None
    variance: float | None = None
    freedom: int = 0
    rule: TieRule | None = None
    outside: bool = False

    @property
    def seen(self) -> bool:
        """True if `gap` is the engine's own, not float32's."""
        return self.rule in ("B", None)


def least_x(of: Sight, largest: float) -> float:
    """Return the standardised gap of a place where nothing tells σ, if σ is the `largest` that is allowed."""
    return (of.gap or 0.0) / (largest * math.sqrt(2 * (SEEN if of.seen else 1.0)))


def sight(tokens: Sequence[int], shown: ShownPlace) -> Sight:
    """Return what `shown` tells of the choice between two tokens at one place, or of one before all others."""
    of = _between(tokens, shown)
    if of.gap != math.inf:
        return of
    values = shown.float32 if of.rule in ("A", "C") or not shown.top else shown.top
    return replace(of, gap=max(values) - min(values), outside=True)


def _between(tokens: Sequence[int], shown: ShownPlace) -> Sight:
    names, values = shown.top_tokens, shown.top
    if not names:
        return Sight()
    whole = len(values) == len(names)
    unit = (unit_of(values) or 0.0) if whole else 0.0
    other = shown.again if shown.again or shown.float32 else shown.second
    if whole and len(other) == len(names):
        gap = gap_between(tokens, values, names)
        unit = coarser(gap, sorted(values, reverse=True)[:LARGEST], unit)
        return Sight(gap, *spread(values, other, 0.5, unit**2 / 12), "B")
    if len(shown.float32) == len(names):
        gap = gap_between(tokens, shown.float32, names)
        if whole:
            return Sight(gap, *spread(values, shown.float32, 1.0, unit**2 / 12), "A")
        if len(shown.second) == len(names):
            return Sight(gap, *spread(shown.second, shown.float32, MIMIC**2), "C")
        return Sight(gap)
    return Sight(gap_between(tokens, values, names) if whole else None)


def coarser(gap: float, largest: Sequence[float], unit: float) -> float:
    """Return the unit of the grid that `largest` lie on: `gap` if it is two or four times `unit` and all allow that."""
    for wide in (2 * unit, 4 * unit) if unit else ():
        steps = [(largest[0] - value) / wide for value in largest]
        if abs(gap - wide) <= TOLERANCE and all(abs(n - round(n)) * wide <= TOLERANCE for n in steps):
            return wide
    return unit


def gap_between(tokens: Sequence[int], values: Sequence[float], names: Sequence[int]) -> float:
    """Return the distance of two tokens in `values`, those of `names`, or of one from the largest; infinite where one
    of them has no value.
    """
    of = dict(zip(names, values, strict=True))
    apart = [of.get(token, -math.inf) for token in tokens] + ([max(values)] if len(tokens) == 1 else [])
    return max(apart) - min(apart) if min(apart) > -math.inf else math.inf


def spread(a: Sequence[float], b: Sequence[float], factor: float = 1.0, more: float = 0.0) -> tuple[float | None, int]:
    """Return (variance of a − b times `factor`, plus `more`; its degrees of freedom). Their mean is no rounding."""
    differences = [x - y for x, y in zip(a, b, strict=True)]
    freedom = len(differences) - 1
    if freedom < 2 or not all(map(math.isfinite, differences)):
        return None, 0
    mean = math.fsum(differences) / len(differences)
    return factor * math.fsum((d - mean) ** 2 for d in differences) / freedom + more, freedom


def shrunk(variances: Floats, freedom: Floats) -> tuple[Floats, Floats]:
    """Return (s², its degrees of freedom) of places whose variances one rule gave, drawn towards their median.

    `freedom` is 0 at a place without an estimate of its own: it then has the median alone. NaN where nothing tells.
    """
    from scipy.special import chdtri

    with np.errstate(divide="ignore", invalid="ignore"):
        own = np.where(freedom > 0, variances * freedom / chdtri(freedom, 0.5), np.nan)
    several = (freedom > 0).sum(-1, keepdims=True) >= LEAST_PLACES
    middle = np.where(several, np.nanmedian(np.where(several, own, 1.0), axis=-1, keepdims=True), np.nan)
    known = np.where(freedom > 0, variances, 0.0)
    alone = np.where(freedom >= LEAST_FREEDOM, known, np.nan)
    drawn = (PRIOR * middle + freedom * known) / (PRIOR + freedom)
    return np.where(several, drawn, alone), np.where(several, PRIOR + freedom, freedom)


def standardised(gaps: Floats, variances: Floats, freedom: Floats, seen: bool = False) -> Floats:
    """Return gaps in standard deviations: as far out in the normal distribution as g/√(2·s²) is in Student's.

    `variances`, `freedom`: as `shrunk` returns them. `seen`: the gaps are one pass's own (rule B), not float32's.
    """
    from scipy.special import ndtri, stdtr

    with np.errstate(divide="ignore", invalid="ignore"):
        x = np.where(gaps == 0, 0.0, gaps / np.sqrt(2 * variances * (SEEN if seen else 1.0)))
    tail = np.maximum(stdtr(freedom, -np.abs(x)), SMALLEST)
    return np.asarray(-ndtri(tail), dtype=np.float64)


SMALLEST: Final = 1e-300
"""The least probability that a standardised gap is computed from; it is 37 then."""


def limits(places: int, error: float) -> tuple[float, float]:
    """Return (the furthest standardised gap, the mean of their squares) that rounding exceeds with a chance of `error`
    over both, at so many places.
    """
    from scipy.special import chdtri, ndtri

    return float(-ndtri(error / 4 / places)), float(chdtri(places, error / 2)) / places


@dataclass(frozen=True, slots=True)
class Standing:
    """One place under the law. `gap`: as in `Sight`. `x`, `sigma`, `rule`: as in `contract.Divergence`. `near`: no
    further than rounding.
    """

    near: bool
    gap: float | None
    x: float | None
    sigma: float | None
    rule: TieRule | None


def law_of(sights: Sequence[Sight], error: float, largest: float | None = None) -> tuple[TieLaw, list[Standing]]:
    """Return (the tests over different places, where each of them stands).

    `error`: the chance that an engine which only rounds is called wrong by either test. `largest`: the largest σ that
    it may have. Where nothing tells σ, a gap that not even this one explains is wrong.
    """
    xs, sigmas, outside = dict[int, float](), dict[int, float](), dict[int, float]()
    for seen in (True, False):
        mine = [i for i, s in enumerate(sights) if s.gap is not None and s.seen == seen]
        if not mine:
            continue
        own = np.array([[sights[i].variance or 0.0, sights[i].freedom] for i in mine], dtype=np.float64)
        variances, freedom = shrunk(own[:, 0], own[:, 1])
        gaps = np.array([sights[i].gap for i in mine], dtype=np.float64)
        for i, x, s2 in zip(mine, standardised(gaps, variances, freedom, seen), variances, strict=True):
            if not math.isnan(s2):
                sigmas[i] = math.sqrt(s2)
                (outside if sights[i].outside else xs)[i] = float(x)
    furthest, mean = limits(max(len(sights), 1), error)[0], limits(max(len(xs), 1), error)[1]
    wrong = {i for i, s in enumerate(sights) if s.gap == math.inf or outside.get(i, 0.0) > furthest}
    if largest is not None:
        wrong |= {i for i, s in enumerate(sights) if i not in sigmas and least_x(s, largest) > furthest}
    squares = [sigmas[i] ** 2 / (MIMIC**2 if sights[i].rule == "C" else 1.0) for i in xs]
    law = TieLaw(
        places=len(xs),
        unknown=len(sights) - len(xs) - len(wrong),
        furthest=max(xs.values(), default=0.0),
        furthest_allowed=furthest,
        mean_square=math.fsum(x * x for x in xs.values()) / max(len(xs), 1),
        mean_square_allowed=mean,
        sigma=math.sqrt(math.fsum(squares) / len(xs)) if xs else None,
    )
    standing = [_standing(s, xs.get(i), sigmas.get(i), furthest) for i, s in enumerate(sights)]
    return law, [replace(at, rule="outside") if i in wrong else at for i, at in enumerate(standing)]


def _standing(of: Sight, x: float | None, sigma: float | None, furthest: float) -> Standing:
    if x is None:
        return Standing(False, of.gap, None, None, None)
    return Standing(x <= furthest, of.gap, x, sigma, of.rule or "B")
