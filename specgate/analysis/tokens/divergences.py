"""Where texts diverge: continuations, the last place that both can have rounded, and the divergences.

An engine that computes logits in bfloat16 has them at multiples of 2^(e-7), where 2^e is their magnitude; in float16,
of 2^(e-10). Their differences are multiples, too, and so are the differences of their log-probabilities, since softmax
subtracts the same number from all. So the unit can be seen from outside, without the logits.

Where two texts part at a near tie, nothing can be compared behind it. So the baseline's role is asked to decode on from
the speculative text. It repeats that text for as long as every token of it is the plain decoder's own choice.

Rounding makes texts part where two tokens are nearly tied, the more rarely the further they lie apart. An engine that
takes a draft as soon as it is near the best one (relaxed or typical acceptance) parts at all gaps up to its limit. Each
place by itself may be either; the mean over many tells them apart.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from specgate.analysis.stats import t_quantile
from specgate.analysis.tokens.comparison import first_difference
from specgate.contract import Block, Cell, Divergence, FollowCheck, Followed, NearTies

LAST_PLACE_FEWEST: Final = 10
"""Values that it takes. A gap is an even number of units half of the time: with nine gaps, all are once in 500 places,
and a unit twice as large is seen. A gap on no grid seems to be on the finest one with a probability of 2 TOLERANCE /
FINEST.
"""
TOLERANCE: Final = 1e-5
"""How far a gap may be from a multiple of the unit, in logits: log-probabilities are rounded to float32."""
COARSEST: Final = 1.0
FINEST: Final = 2.0**-12
"""Units that are looked for, in logits. Below the finest the rounding of log-probabilities would hide them."""


def unit_of(top: Sequence[float]) -> float | None:
    """The largest power of two of which all gaps between neighbours in `top` are multiples.

    `top`: logits or log-probabilities of the most likely tokens at one place, from the largest on. Returns None where
    these are fewer than `FEWEST`, or lie on no grid, as logits in float32 do. Where the logits straddle a power of two,
    the smaller ones have the finer grid, and that is returned: a bound in such units is on the strict side.
    """
    if len(top) < LAST_PLACE_FEWEST:
        return None
    gaps = [a - b for a, b in pairwise(top)]
    unit = COARSEST
    while unit >= FINEST:
        steps = [round(gap / unit) for gap in gaps]
        if any(steps) and all(abs(gap - unit * n) <= TOLERANCE for gap, n in zip(gaps, steps, strict=True)):
            return unit
        unit /= 2
    return None


def gap_between(tokens: Sequence[int], top: Sequence[float], top_tokens: Sequence[int]) -> float | None:
    """Distance of the lowest of `tokens` below the largest logit.

    `top`, `top_tokens`: the largest logits, from the first on, and whose they are. Where the engine does not say whose,
    the two largest are taken for those of `tokens`. Infinite where one of `tokens` is not among them; None where there
    are no two.
    """
    if not top_tokens:
        return top[0] - top[1] if len(top) > 1 else None
    of = dict(zip(top_tokens, top, strict=False))
    return max(top[0] - of.get(token, -math.inf) for token in tokens)


@dataclass(frozen=True, slots=True)
class Parted:
    """A speculative text of `cell` that left the baseline's at index `position`, and its tokens."""

    cell: Cell
    prompt_set: int
    round: int
    slot: int
    position: int
    tokens: tuple[int, ...]

    @property
    def given(self) -> tuple[int, ...]:
        """The tokens that plain decoding is to go on from."""
        return self.tokens[: self.position + 1]

    @property
    def rest(self) -> tuple[int, ...]:
        """The tokens that it is held against."""
        return self.tokens[self.position + 1 :]


def parted_texts(
    cell: Cell, blocks: Sequence[Block], divergences: Sequence[Divergence], most: int
) -> tuple[Parted, ...]:
    """The texts of `cell` to be followed: one per distinct divergence, `most` of them, those of the first blocks.

    A text that ends where it parts has nothing to be followed.
    """
    of = {(b.prompt_set, b.round): b for b in blocks if b.cell == cell and not b.warmup}
    by_parting: dict[tuple[int, int, tuple[int, ...]], Parted] = {}
    for d in divergences:
        block = of.get((d.prompt_set, d.round))
        if block is None or len(block.tokens[d.slot]) <= d.position + 1:
            continue
        text = Parted(cell, d.prompt_set, d.round, d.slot, d.position, block.tokens[d.slot])
        by_parting.setdefault((d.prompt_set, d.slot, text.given), text)
    return tuple(by_parting.values())[:most]


def check_followed(parted: Sequence[Parted], followed: Sequence[Followed], ties: NearTies) -> FollowCheck | None:
    """Compare the texts `parted` with plain decoding behind the places where they left the baseline. None without
    any.
    """
    if not parted:
        return None
    known = {(f.cell, f.prompt_set, f.round, f.slot, f.position): f for f in followed}
    sequences = tokens = near_ties = 0
    wrong: list[tuple[int, int, int, int]] = []
    rare: list[tuple[int, int, int, int]] = []
    for text in parted:
        answer = known.get((text.cell.key, text.prompt_set, text.round, text.slot, text.position))
        sequences += 1
        if answer is None:  # what nobody looked at is not excused
            wrong.append((text.prompt_set, text.round, text.slot, text.position))
            continue
        at = first_difference(text.rest, answer.tokens)
        tokens += min(len(text.rest), len(answer.tokens)) if at is None else at
        if at is None:
            continue
        place = text.prompt_set, text.round, text.slot, text.position + 1 + at
        gap, unit = gap_between((text.rest[at], answer.tokens[at]), answer.top, answer.top_tokens), unit_of(answer.top)
        if answer.top_tokens and ties.covers(gap, unit):
            near_ties += 1
        else:
            (rare if answer.top_tokens and ties.rarely_covers(gap, unit) else wrong).append(place)
    if len(rare) <= ties.allowed_rare(near_ties + len(rare)):
        near_ties += len(rare)
    else:
        wrong += rare
    return FollowCheck(sequences, tokens, near_ties, len(wrong), wrong[0] if wrong else None)


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
