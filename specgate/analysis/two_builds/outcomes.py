"""Outcomes of a comparison of two builds, and its interim looks.

A comparison is judged after so many process pairs. Where the word is CANNOT TELL, more pairs may be added, and all of
them are judged again. Every look spends a share of the error of its own, and the shares sum up to less than the whole.
So the chance that any look says a wrong word is at most the error of one comparison (Bonferroni), however often it is
extended. That holds for numbers of pairs that do not depend on what was seen. Chosen by the noise that was seen, as the
printed command does it, they cost at the worst 3 % of the error more (0.515 for 0.5 %, normal approximation). The first
word that is not CANNOT TELL is final.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from specgate.analysis.cell_names import cell_name
from specgate.analysis.two_builds.estimates import Difference
from specgate.contract.two_builds import NAMES, Quantity, Word

UNSPENT: Final = 0.6
"""Share of the error that four process pairs leave to later looks, eight then its square, and so on.

Four quiet pairs end at the first look. Noisy ones need the later looks, which a larger share would leave too little.
"""


def share(error: float, pairs: int, before: int = 0) -> float:
    """Error that a look after `pairs` process pairs may spend, where the look before it saw `before`:
    error · (0.6^(before / 4) − 0.6^(pairs / 4)). All looks together spend less than `error`.
    """
    return error * (math.pow(UNSPENT, before / 4) - math.pow(UNSPENT, pairs / 4))


MOST_PROCESSES: Final = 200
"""Process pairs that anybody can be asked for."""
MOST_PROMPTS: Final = 10_000
"""Prompts that anybody can be asked for."""


def words_of(differences: Mapping[str, Difference], margins: Mapping[str, float], error: float) -> dict[str, Word]:
    """A word for each of `differences`, which are ln(new / old) turned so that more is worse.

    `margins`: the same keys → the margin on the log scale.

    SAME where the interval with an error of `error` on each side lies within ± margin (two one-sided tests). Otherwise
    SLOWER or FASTER where the sign is proven by Holm's procedure over all of `differences`, with the error `error` for
    each of the two directions. SAME comes first: a difference that is proven not to matter is no alarm.
    """
    worse = holm({key: d.chance() for key, d in differences.items()}, error)
    better = holm({key: d.mirrored().chance() for key, d in differences.items()}, error)
    words = {}
    for key, difference in differences.items():
        if abs(difference.mean) + difference.half_width(error) < margins[key]:
            words[key] = Word.SAME
        elif key in worse or key in better:
            words[key] = Word.SLOWER if key in worse else Word.FASTER
        else:
            words[key] = Word.CANNOT_TELL
    return words


def holm(chances: Mapping[str, float], error: float) -> set[str]:
    """The keys whose null hypotheses Holm's procedure rejects at the family-wise error `error`.

    `chances`: key → p-value. Holm, S. (1979): A simple sequentially rejective multiple test procedure.
    """
    rejected: set[str] = set()
    for left, key in zip(range(len(chances), 0, -1), sorted(chances, key=lambda key: chances[key]), strict=True):
        if chances[key] > error / left:
            break
        rejected.add(key)
    return rejected


def needed(difference: Difference, margin: float, error: float, family: int, most: int = MOST_PROCESSES) -> int | None:
    """Number of process pairs (or prompts) that would be enough to tell, if mean and `sd` stay as they are.

    Enough is what proves either SAME or the sign, the latter at the share of the error that the first of `family`
    quantities gets. None where `most` would not do.
    """

    def enough(n: int) -> bool:
        more = replace(difference, n=n)
        return abs(difference.mean) + more.half_width(error) < margin or abs(difference.mean) > more.half_width(
            error / family
        )

    # More are always better, so the first number that is enough can be searched by halving.
    counts = range(difference.n + 1, most + 1)
    at = bisect_left(counts, True, key=enough)
    return counts[at] if at < len(counts) else None


def within_pct(difference: Difference, error: float) -> float:
    """The least margin, in percent, within which a difference is proven to lie, with an error of `error`."""
    return 100 * math.expm1(abs(difference.mean) + difference.half_width(error))


def all_within_pct(quantities: Sequence[Quantity]) -> float | None:
    """The least margin, in percent, within which all quantities that decide lie; None where one has no interval.

    An intersection-union test: it is wrong only if the bound of the one that differs most is, so it costs no more error
    than that one.
    """
    deciding = [q.within_pct for q in quantities if q.decides]
    known = [within for within in deciding if within is not None]
    return max(known) if known and len(known) == len(deciding) else None


def overall(quantities: Sequence[Quantity], same_within_pct: float | None = None) -> tuple[Word, str]:
    """The word of the whole, and the quantity that it is due to.

    SLOWER as soon as one quantity that decides is; else CANNOT TELL where one cannot be told, because it may hide a
    loss; else FASTER where one is; else SAME. With `same_within_pct` it is SAME, too, where no quantity that decides
    can differ by more: that comes before SLOWER and CANNOT TELL, as a margin does.
    """
    deciding = [q for q in quantities if q.decides]
    within = all_within_pct(quantities)
    enough = same_within_pct is not None and within is not None and within <= same_within_pct
    for word in (Word.SLOWER, Word.CANNOT_TELL, Word.FASTER):
        if same_word := [q for q in deciding if q.word is word]:
            if enough and word is not Word.FASTER:
                break
            return word, "; ".join(f"{NAMES[q.name]} {cell_name(q.cell)} {q.reason}" for q in same_word)
    if not deciding:
        return Word.CANNOT_TELL, "nothing was measured on both sides"
    of = f"within {same_within_pct:g} % (--same-within)" if enough else "within their margins"
    who = f"all {len(deciding)} quantities that decide are" if len(deciding) > 1 else "the one quantity that decides is"
    return Word.SAME, f"{who} the same {of}"


def log_margin(percent: float) -> float:
    """A margin in percent on the log scale."""
    return math.log1p(percent / 100)
