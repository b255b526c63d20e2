"""Accepted drafts that an engine claims, beside what the pair's own draft has right along the same text.

A greedy engine accepts of a chain what its text goes on with. So the draft alone, run along the text by a second
engine, tells how much was accepted. An engine that claims more had other drafts: from memory, or from the answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from specgate.contract import Block, Cell, DraftCheck, RescoredText, Rescoring

SHARE: Final = 0.05
"""How far rounding may raise the tokens of a cell's cycles, as a share."""
FEW: Final = 3
"""Draft tokens that may be claimed beyond that."""


class Cycle(NamedTuple):
    """A cycle of one slot. `start`: the index of the last token before it. Of `drafted` tokens, `accepted` were."""

    start: int
    accepted: int
    drafted: int


def whole_cycles(block: Block, slot: int) -> Iterator[Cycle]:
    """Yield the cycles of a slot whose tokens were all emitted; none of a server, which does not show them."""
    at = 0
    for accepted, drafted in zip(block.accepted, block.drafted, strict=True):
        if accepted[slot] < 0 or at + accepted[slot] + 2 > len(block.tokens[slot]):
            return
        yield Cycle(at, accepted[slot], drafted[slot])
        at += accepted[slot] + 1


def check_drafts(
    cell: Cell, blocks: Sequence[Block], texts: Sequence[RescoredText], rescoring: Rescoring
) -> DraftCheck | None:
    """Compare the accepted drafts of `cell` with those that the second engine found. None of a baseline, and of a run
    that did not ask for it.
    """
    if not cell.role.speculative or rescoring.seed is None:
        return None
    if rescoring.undrafted is not None:
        return DraftCheck(unchecked=rescoring.undrafted)
    by_round = {(b.prompt_set, b.round): b for b in blocks if b.cell == cell}
    cycles = claimed = drafted = 0
    for text in texts:
        made = {c.start: c for c in whole_cycles(by_round[text.prompt_set, text.round], text.slot)}
        for start, count in zip(text.starts, text.drafted, strict=True):
            cycles += 1
            claimed += made[start].accepted
            drafted += min(count, made[start].drafted)
    return DraftCheck(cycles, claimed, drafted, drafted + SHARE * (cycles + drafted) + FEW)
