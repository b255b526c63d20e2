"""Answers → the exact-match score of every cell, and how speculation changes it on the same questions.

The change is spec's share of right answers less the baseline's. Its interval is for paired proportions: Newcombe
(1998), Statistics in Medicine 17, 2635–2650, method 10, which is built from Wilson's score intervals and allows for how
alike the two answers to a question are. It is not empty where no answer differs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from specgate.analysis.stats import ALPHA
from specgate.contract import CellResult, Point, Value
from specgate.contract.samples.answers import Answered

SCORE: Final = "exact_match"
CHANGE: Final = "exact_match_change"
LOST: Final = "answers_lost"
WON: Final = "answers_won"
CUT: Final = "answers_cut"

Question = tuple[int, int]
"""(prompt set, prompt)."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """Questions that baseline and spec both answered, by which of them was right.

    `both`, `neither`: both or none. `lost`: the baseline alone. `won`: spec alone.
    """

    both: int
    lost: int
    won: int
    neither: int

    @property
    def questions(self) -> int:
        """Number of questions."""
        return self.both + self.lost + self.won + self.neither

    @property
    def change(self) -> float:
        """Spec's share of right answers less the baseline's."""
        return (self.won - self.lost) / self.questions

    def interval(self, error: float = ALPHA) -> tuple[float, float]:
        """(low, high) of `change`, with this error on each side; `questions` must not be 0."""
        n, spec, base = self.questions, self.both + self.won, self.both + self.lost
        (spec_low, spec_high), (base_low, base_high) = wilson(spec, n, error), wilson(base, n, error)
        p, q, phi = spec / n, base / n, self._correlation
        below = spread(p - spec_low, base_high - q, phi)
        above = spread(spec_high - p, q - base_low, phi)
        return max(-1.0, self.change - below), min(1.0, self.change + above)

    @property
    def _correlation(self) -> float:
        """Newcombe's φ: the correlation of the answers, with a correction for continuity where it is positive."""
        spec, base, n = self.both + self.won, self.both + self.lost, self.questions
        scale = spec * (n - spec) * base * (n - base)
        if not scale:
            return 0.0
        product = self.both * self.neither - self.lost * self.won
        return (max(product - n / 2, 0.0) if product > 0 else product) / math.sqrt(scale)


def spread(one: float, other: float, correlation: float) -> float:
    """Length of the difference of two deviations that are so correlated."""
    return math.sqrt(max(0.0, one * one - 2 * correlation * one * other + other * other))


def wilson(hits: int, n: int, error: float = ALPHA) -> tuple[float, float]:
    """Wilson's score interval of a share (1927), with this error on each side; `n` must not be 0."""
    from scipy.special import ndtri

    z, share = -float(ndtri(error)), hits / n
    middle, half = share + z * z / (2 * n), z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, (middle - half) / (1 + z * z / n)), min(1.0, (middle + half) / (1 + z * z / n))


def with_quality(cells: Sequence[CellResult], answered: Sequence[Answered]) -> tuple[CellResult, ...]:
    """`cells` with their score, and of spec cells its change, where their prompts have keys of answers.

    A question counts that every cell of its point has answered.
    """
    of: dict[str, dict[Question, Answered]] = defaultdict(dict)
    for answer in answered:
        of[answer.cell][answer.prompt_set, answer.prompt] = answer
    questions_of: dict[Point, set[Question]] = {}
    for result in cells:
        if (mine := of.get(result.cell.key)) and result.status != "failed":
            questions_of[result.cell.point] = questions_of.get(result.cell.point, mine.keys()) & mine.keys()

    def extended(result: CellResult) -> CellResult:
        base, mine = (of.get(cell.key, {}) for cell in (result.cell.baseline, result.cell))
        if result.status == "failed" or not mine or not (both := questions_of[result.cell.point]):
            return result
        rights = [(base[q].right, mine[q].right) for q in both if result.cell.role.speculative and q in base]
        more = {v.metric: v for v in (*score([mine[q] for q in both]), *change(rights))}
        return replace(result, values={**result.values, **more})

    return tuple(map(extended, cells))


def score(answers: Sequence[Answered]) -> Iterator[Value]:
    """Yield the share of right answers, and how many texts ended at the token budget."""
    hits, n = sum(a.right for a in answers), len(answers)
    yield Value(SCORE, hits / n, "mean", n, *wilson(hits, n))
    if cut := sum(a.cut for a in answers):
        yield Value(CUT, float(cut), "count", n)


def change(rights: Sequence[tuple[bool, bool]]) -> Iterator[Value]:
    """Yield the change of the score with its interval, and the answers behind it. `rights`: whether baseline and spec
    are right, question by question.
    """
    pairs = Pairs(*map(rights.count, ((True, True), (True, False), (False, True), (False, False))))
    if pairs.questions:
        yield Value(CHANGE, pairs.change, "paired", pairs.questions, *pairs.interval())
        yield Value(LOST, float(pairs.lost), "count", pairs.questions)
        yield Value(WON, float(pairs.won), "count", pairs.questions)
