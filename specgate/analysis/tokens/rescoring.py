"""What a second engine says of the tokens of a cell. Which tokens it is asked about is drawn once they are there."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specgate.core import Block, Cell, Divergence, RescoredText, Rescoring, ScoreCheck, TokenChecks
from specgate.errors import InvalidResult


@dataclass(frozen=True, slots=True)
class Draw:
    """Tokens to be scored: those of `block` in `slot` at `positions`, ascending."""

    block: Block
    slot: int
    positions: tuple[int, ...]

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens at `positions`."""
        return tuple(self.block.tokens[self.slot][p] for p in self.positions)


def draws(
    run_id: str, blocks: Sequence[Block], near_ties: Mapping[Cell, Sequence[Divergence]], count: int
) -> list[Draw]:
    """`count` tokens of every cell of a point, fewer where it has emitted fewer; and of every cell with near ties, as
    many from one text behind its near tie, where the comparison with the baseline has ended.

    `blocks`: the measured blocks of the point. The draw depends on the run's id, which no engine is told, and on the
    tokens themselves. So it can be repeated and cannot be foreseen. All cells get the same prompts, so that one pass
    over the longest text scores every text that it begins with. Texts shorter than `count` need several prompts.
    """
    blocks = [block for block in blocks if block.answered_all]
    source = drawing(run_id, blocks)
    last = {(b.cell, b.prompt_set): b for b in sorted(blocks, key=lambda b: b.round)}
    cells = sorted({b.cell for b in blocks}, key=lambda cell: cell.key)
    places = sorted({(b.prompt_set, slot) for b in blocks for slot in range(len(b.tokens))})
    left = dict.fromkeys(cells, count)
    found = []
    for prompt_set, slot in source.sample(places, len(places)):
        for cell in cells:
            if left[cell] and (block := last.get((cell, prompt_set))):
                found.append(drawn(source, block, slot, 0, left[cell]))
                left[cell] -= len(found[-1].positions)
    for cell in sorted(near_ties, key=lambda cell: cell.key):
        if ties := near_ties[cell]:
            tie = source.choice(ties)
            parted = next(b for b in blocks if (b.cell, b.prompt_set, b.round) == (cell, tie.prompt_set, tie.round))
            found.append(drawn(source, parted, tie.slot, tie.position, count))
    return found


def drawn(source: random.Random, block: Block, slot: int, first: int, count: int) -> Draw:
    """`count` tokens of `slot` from index `first` on, that one among them where it is not 0."""
    rest = range(first, len(block.tokens[slot]))
    positions = set(source.sample(rest, min(count, len(rest)))) | ({first} if first else set())
    return Draw(block, slot, tuple(sorted(positions)))


def drawing(run_id: str, blocks: Sequence[Block]) -> random.Random:
    """A source of draws that follows from the run's id and the tokens of `blocks`."""
    digest = hashlib.sha256(run_id.encode())
    for block in blocks:
        digest.update(repr((block.cell.key, block.prompt_set, block.round, block.tokens)).encode())
    return random.Random(digest.digest())


def check_scores(cell: Cell, asked: Sequence[Draw], found: Rescoring, checks: TokenChecks) -> ScoreCheck:
    """What the scores of `cell` in `found` amount to.

    `asked`: what was drawn of the cell. Raises InvalidResult where other tokens were scored.
    """
    engine = ", ".join(filter(None, (found.engine, found.dtype, found.device)))
    texts = [text for text in found.texts if text.cell == cell.key]
    if found.unscored is not None:
        return ScoreCheck(engine, unscored=found.unscored)
    if [place_of(text) for text in texts] != [place_of_draw(draw) for draw in asked]:
        raise InvalidResult(f"{cell.key}: samples/rescored.jsonl scores other tokens than the run's id draws")
    scored = sum(len(text.scores) for text in texts)
    gaps = [
        (score.best_logit - score.logit, (text.prompt_set, text.round, text.slot, position))
        for text in texts
        for position, token, score in zip(text.positions, text.tokens, text.scores, strict=True)
        if token != score.best
    ]
    # A gap that is negative or not a number is no near tie: the scores then contradict themselves.
    near_ties = sum(0 <= gap <= checks.max_gap for gap, _ in gaps)
    return ScoreCheck(
        engine=engine,
        scored=scored,
        near_ties=near_ties,
        wrong=len(gaps) - near_ties,
        near_ties_allowed=int(checks.max_near_ties * scored),
        gap_max=max((gap for gap, _ in gaps), default=0.0),
        worst=max(gaps)[1] if gaps else None,
    )


def place_of(text: RescoredText) -> tuple[object, ...]:
    """What a text of the journal has to have in common with the draw."""
    return text.prompt_set, text.round, text.slot, text.positions, text.tokens, len(text.scores)


def place_of_draw(draw: Draw) -> tuple[object, ...]:
    """The same of the draw."""
    b = draw.block
    return b.prompt_set, b.round, draw.slot, draw.positions, draw.tokens, len(draw.positions)
