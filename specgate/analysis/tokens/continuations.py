"""Check that a text which left the baseline's stays greedy behind that place, by continuing it with plain decoding.

Where two texts part at a near tie, nothing can be compared behind it. So the baseline's role is asked to decode on from
the speculative text. It repeats that text for as long as every token of it is the plain decoder's own choice.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from specgate.analysis.tokens.comparison import first_difference
from specgate.contract import Block, Cell, Divergence, FollowCheck, Followed

Place = tuple[int, int, int, int]
"""Prompt set, round, slot and index of a token."""


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
    def place(self) -> Place:
        """(prompt set, round, slot, index) of the token with which it left the baseline's."""
        return self.prompt_set, self.round, self.slot, self.position

    @property
    def given(self) -> tuple[int, ...]:
        """The tokens that plain decoding is to go on from."""
        return self.tokens[: self.position + 1]

    @property
    def rest(self) -> tuple[int, ...]:
        """The tokens that it is compared with."""
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


@dataclass(frozen=True, slots=True)
class Departure:
    """A place behind a near tie where plain decoding leaves the text: (prompt set, round, slot, index), the text's
    token and plain decoding's, and what the engine shows there.
    """

    place: Place
    tokens: tuple[int, int]
    shown: Followed


def left_again(parted: Sequence[Parted], followed: Sequence[Followed]) -> list[Departure]:
    """The places where plain decoding in `followed` leaves the texts `parted` once more."""
    answers, left = _answers(followed), list[Departure]()
    for text in parted:
        answer = answers.get((text.cell.key, *text.place))
        if answer is not None and (at := first_difference(text.rest, answer.tokens)) is not None:
            place = text.prompt_set, text.round, text.slot, text.position + 1 + at
            left.append(Departure(place, (text.rest[at], answer.tokens[at]), answer))
    return left


def follow_check(
    parted: Sequence[Parted],
    followed: Sequence[Followed],
    near_ties: Collection[Place],
    unknown: Collection[Place] = (),
) -> FollowCheck | None:
    """Compare the texts `parted` with plain decoding behind the places where they left the baseline. None without
    any. `near_ties`: the places of `left_again` that are near ties. `unknown`: those where nothing tells. What nobody
    looked at is not excused.
    """
    if not parted:
        return None
    answers, left = _answers(followed), {d.place[:3]: d for d in left_again(parted, followed)}
    tokens = near = untold = 0
    wrong: list[Place] = []
    for text in parted:
        answer, again = answers.get((text.cell.key, *text.place)), left.get(text.place[:3])
        if answer is None:
            wrong.append(text.place)
        elif again is None:
            tokens += min(len(text.rest), len(answer.tokens))
        else:
            tokens += again.place[-1] - text.position - 1
            near += again.place in near_ties
            untold += again.place in unknown
            wrong += [] if again.place in near_ties or again.place in unknown else [again.place]
    return FollowCheck(len(parted), tokens, near, len(wrong), wrong[0] if wrong else None, untold)


def _answers(followed: Sequence[Followed]) -> dict[tuple[str, int, int, int, int], Followed]:
    return {(f.cell, f.prompt_set, f.round, f.slot, f.position): f for f in followed}
