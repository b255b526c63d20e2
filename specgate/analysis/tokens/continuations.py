"""Check that a text which left the baseline's stays greedy behind that place, by continuing it with plain decoding.

Where two texts part at a near tie, nothing can be compared behind it. So the baseline's role is asked to decode on from
the speculative text. It repeats that text for as long as every token of it is the plain decoder's own choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specgate.analysis.tokens.comparison import first_difference
from specgate.analysis.tokens.last_place import gap_between, unit_of
from specgate.contract import Block, Cell, Divergence, FollowCheck, Followed, NearTies


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
