"""Check a second engine's scores of the tokens of a cell. The tokens are drawn after they were emitted."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from specgate.contract import Block, Cell, Divergence, RescoredText, Rescoring, Score, ScoreCheck, TokenChecks
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
    drawn_texts = []
    for prompt_set, slot in source.sample(places, len(places)):
        for cell in cells:
            if left[cell] and (block := last.get((cell, prompt_set))):
                drawn_texts.append(drawn(source, block, slot, 0, left[cell]))
                left[cell] -= len(drawn_texts[-1].positions)
    for cell in sorted(near_ties, key=lambda cell: cell.key):
        if ties := near_ties[cell]:
            tie = source.choice(ties)
            parted = next(b for b in blocks if (b.cell, b.prompt_set, b.round) == (cell, tie.prompt_set, tie.round))
            drawn_texts.append(drawn(source, parted, tie.slot, tie.position, count))
    return drawn_texts


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


def check_scores(cell: Cell, chosen: Sequence[Draw], rescoring: Rescoring, checks: TokenChecks) -> ScoreCheck:
    """Reduce the scores of `cell` in `rescoring` to one result.

    `chosen`: what was drawn of the cell. Raises InvalidResult where other tokens were scored.
    """
    engine = ", ".join(filter(None, (rescoring.engine, rescoring.dtype, rescoring.device)))
    texts = texts_of(cell, rescoring.texts)
    if rescoring.unscored is not None:
        return ScoreCheck(engine, unscored=rescoring.unscored)
    if [place_of(text) for text in texts] != [place_of_draw(draw) for draw in chosen]:
        raise InvalidResult(f"{cell.key}: samples/rescored.jsonl scores other tokens than the run's id draws")
    scored = sum(len(text.scores) for text in texts)
    gaps = [gap for text in texts for gap in gaps_in(text)]
    near_ties = sum(is_near_tie(gap, checks) for gap, _ in gaps)
    doubted = set(doubtful(gaps, scored, checks)) if checks.second_look != "none" else set[Place]()
    again, near = scored_in_float32(cell, rescoring, checks)
    settled = [gap for gap in gaps if gap[1] in doubted & near]
    wrong = len(gaps) - near_ties - len(settled)
    left = [gap for gap in gaps if gap not in settled] if wrong else gaps
    return ScoreCheck(
        engine=engine,
        scored=scored,
        near_ties=near_ties + len(settled),
        wrong=wrong,
        near_ties_allowed=int(checks.max_near_ties * scored),
        gap_max=max((gap for gap, _ in left), default=0.0),
        worst=max(left)[1] if left else None,
        again=sum(place in doubted & again for _, place in gaps),
        settled=len(settled),
        unsettled=rescoring.again.unscored if rescoring.again and doubted else None,
    )


def is_near_tie(gap: float, checks: TokenChecks) -> bool:
    """True if a token that lies so far below the second engine's choice may still be right.

    A gap that is negative or not a number is no near tie: the scores then contradict themselves.
    """
    return 0 <= gap <= checks.max_gap


Place = tuple[int, int, int, int]
"""Prompt set, round, slot and index of a token."""
ONE_ROUNDING: Final = 0.5**0.5
"""`max_gap` is for two engines that round alike, each on its own. Of two logits as exact as float32 only one's error is
left, and the same number of standard deviations is √2 smaller.
"""
Gap = tuple[float, Place]
"""How far a token lies below the second engine's choice, in logits, and which one it is."""


def doubtful(gaps: Sequence[Gap], scored: int, checks: TokenChecks) -> list[Place]:
    """The tokens of a cell that are worth a second look in float32: those beyond `max_gap`, where they are few.

    None where the cell would be wrong even if all of them were near ties: scores contradict themselves, or more tokens
    were not chosen than may be near ties.

    gaps: of all tokens of the cell that the second engine would not have chosen. scored: how many it scored.
    """
    if len(gaps) > int(checks.max_near_ties * scored) or not all(gap >= 0 for gap, _ in gaps):
        return []
    return [place for gap, place in gaps if gap > checks.max_gap]


def in_doubt(chosen: Sequence[Draw], texts: Sequence[RescoredText], checks: TokenChecks) -> list[Draw]:
    """The tokens of one point that are worth a second look. `texts`: the scores of `chosen`, in the same order."""
    scored = list(zip(chosen, texts, strict=True))
    doubted = set[tuple[Cell, Place]]()
    for cell in {draw.block.cell for draw in chosen}:
        mine = [text for draw, text in scored if draw.block.cell == cell]
        gaps = [gap for text in mine for gap in gaps_in(text)]
        doubted |= {(cell, place) for place in doubtful(gaps, sum(len(t.scores) for t in mine), checks)}
    left = []
    for draw, text in scored:
        positions = tuple(place[-1] for place, _, _ in placed(text) if (draw.block.cell, place) in doubted)
        if positions:
            left.append(Draw(draw.block, draw.slot, positions))
    return left


def scored_in_float32(cell: Cell, rescoring: Rescoring, checks: TokenChecks) -> tuple[set[Place], set[Place]]:
    """(The tokens that got a second look, those of them that float32 chooses or that are near ties in float32).

    Raises InvalidResult where they are not among the tokens that were scored before.
    """
    scored = {(*place, token) for t in texts_of(cell, rescoring.texts) for place, token, _ in placed(t)}
    again, near = set[Place](), set[Place]()
    for text in texts_of(cell, rescoring.again.texts if rescoring.again else ()):
        if not len(text.positions) == len(text.tokens) == len(text.scores):
            raise InvalidResult(f"{cell.key}: samples/rescored.jsonl has not one score per token in its second look")
        for place, token, score in placed(text):
            if (*place, token) not in scored:
                raise InvalidResult(f"{cell.key}: samples/rescored.jsonl has a second look at tokens without a first")
            again.add(place)
            if 0 <= score.best_logit - score.logit <= checks.max_gap * ONE_ROUNDING:
                near.add(place)
    return again, near


def texts_of(cell: Cell, texts: Sequence[RescoredText]) -> list[RescoredText]:
    """Those of `cell`."""
    return [text for text in texts if text.cell == cell.key]


def gaps_in(text: RescoredText) -> list[Gap]:
    """The tokens of `text` that the second engine would not have chosen."""
    return [(score.best_logit - score.logit, place) for place, token, score in placed(text) if token != score.best]


def placed(text: RescoredText) -> Iterator[tuple[Place, int, Score]]:
    """(Its place, token, its score) of every scored token of `text`."""
    for position, token, score in zip(text.positions, text.tokens, text.scores, strict=True):
        yield (text.prompt_set, text.round, text.slot, position), token, score


def place_of(text: RescoredText) -> tuple[object, ...]:
    """Key that a text of the journal must share with its draw."""
    return text.prompt_set, text.round, text.slot, text.positions, text.tokens, len(text.scores)


def place_of_draw(draw: Draw) -> tuple[object, ...]:
    """The same of the draw."""
    b = draw.block
    return b.prompt_set, b.round, draw.slot, draw.positions, draw.tokens, len(draw.positions)
