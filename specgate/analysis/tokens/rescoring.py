"""Check a second engine's scores of the tokens of a cell, and its run of the pair's draft along them.

Tokens and cycles are drawn when the last token is there, from a seed that nobody knows before. Every text contributes:
of texts that are equally long, n drawn tokens all miss junk that is a share p of them with a chance of (1 − p)^n at
most, however it is spread.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from specgate.analysis.tokens.comparison import first_difference
from specgate.analysis.tokens.drafts_along import check_drafts, whole_cycles
from specgate.contract import BASELINE, Block, Cell, RescoredText, Rescoring, Score, ScoreCheck, TokenChecks
from specgate.contract.types import Tokens
from specgate.errors import InvalidResult

LEAST_OF_TEXT: Final = 8
"""Tokens that are drawn of every text at least, and as many cycles."""
CYCLES: Final = 128
"""Cycles of a cell along which the draft is run, at least."""


@dataclass(frozen=True, slots=True)
class Draw:
    """Tokens to be scored: those of `block` in `slot` at `positions`, ascending.

    `starts`: cycles of that slot, ascending, each by the index of the last token before it.
    """

    block: Block
    slot: int
    positions: tuple[int, ...]
    starts: tuple[int, ...] = ()

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens at `positions`."""
        return tuple(self.block.tokens[self.slot][p] for p in self.positions)

    @property
    def place(self) -> tuple[int, int]:
        """The prompt set and the prompt that the slot answers."""
        return place_of_slot(self.block, self.slot)


def place_of_slot(block: Block, slot: int) -> tuple[int, int]:
    """Return (prompt set, index of the prompt in it) of a slot. A server may have refused some prompts of the set."""
    answered = block.served.prompts if block.served is not None else ()
    return block.prompt_set, answered[slot] if answered else slot


def draws(seed: str, blocks: Sequence[Block], count: int) -> list[Draw]:
    """At least `count` tokens of every cell of a point, and `LEAST_OF_TEXT` of each of its texts, as far as there are
    so many; and its cycles, where the engine shows them. Rounds that repeat a text count as one.

    Of a text that leaves the baseline's of the same prompt, as many are drawn again from that place on, which is among
    them.

    `blocks`: the measured blocks of the point.
    """
    texts = defaultdict[Cell, dict[object, list[tuple[Block, int]]]](dict)
    first: dict[tuple[int, int], tuple[int, ...]] = {}
    for block in sorted(blocks, key=lambda b: (b.role != BASELINE, b.cell.key, b.prompt_set, b.round)):
        for slot, tokens in enumerate(block.tokens):
            place = place_of_slot(block, slot)
            first.setdefault(place, tokens)
            texts[block.cell].setdefault((place, tokens), []).append((block, slot))
    samples = []
    for cell, of_cell in texts.items():
        source = random.Random(f"{seed} {cell.key}")
        each = max(LEAST_OF_TEXT, math.ceil(count / len(of_cell)))
        cycles = max(LEAST_OF_TEXT, math.ceil(CYCLES / len(of_cell)))
        for emitters in of_cell.values():
            block, slot = source.choice(emitters)
            samples.append(drawn(source, block, slot, first[place_of_slot(block, slot)], each, cycles))
    return samples


def drawn(source: random.Random, block: Block, slot: int, first: tuple[int, ...], count: int, cycles: int) -> Draw:
    """`count` tokens of a text and so many `cycles`. `first`: the baseline's text of the prompt."""
    text = block.tokens[slot]
    positions = set(source.sample(range(len(text)), min(count, len(text))))
    if (parted := first_difference(first, text)) is not None:
        behind = range(parted, len(text))
        positions |= {parted, *source.sample(behind, min(count, len(behind)))}
    starts = [cycle.start for cycle in whole_cycles(block, slot)] if block.role.speculative else []
    return Draw(block, slot, tuple(sorted(positions)), tuple(sorted(source.sample(starts, min(cycles, len(starts))))))


def check_scores(cell: Cell, blocks: Sequence[Block], rescoring: Rescoring, checks: TokenChecks) -> ScoreCheck:
    """Reduce the scores of `cell` in `rescoring` to one result.

    `blocks`: the measured blocks of its point. Raises InvalidResult where other tokens were scored than the seed draws,
    or than they emitted.
    """
    engine = ", ".join(filter(None, (rescoring.engine, rescoring.dtype, rescoring.device)))
    texts = texts_of(cell, rescoring.texts)
    if rescoring.unscored is not None:
        return ScoreCheck(engine, unscored=rescoring.unscored, lost=rescoring.lost)
    check_drawn(cell, blocks, texts, rescoring)
    scored = sum(len(text.scores) for text in texts)
    gaps = [gap for text in texts for gap in gaps_in(text)]
    near_ties = sum(is_near_tie(gap, checks, rescoring.dtype) for gap, _ in gaps)
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
        drafts=check_drafts(cell, blocks, texts, rescoring),
    )


def check_drawn(cell: Cell, blocks: Sequence[Block], texts: Sequence[RescoredText], rescoring: Rescoring) -> None:
    """Check that what was scored of `cell` is what its blocks emitted, and what the seed draws. Raises InvalidResult.

    Of a run without a seed, nobody can tell what should have been drawn.
    """
    file, emitted = "samples/rescored.jsonl", dict[tuple[int, int], Tokens]()
    for block in blocks:
        if block.cell == cell:
            emitted[block.prompt_set, block.round] = block.tokens
    for text in texts:
        of_slots = emitted.get((text.prompt_set, text.round), ())
        tokens = of_slots[text.slot] if text.slot < len(of_slots) else ()
        if [tokens[p] if p < len(tokens) else None for p in text.positions] != list(text.tokens):
            raise InvalidResult(f"{cell.key}: {file} scores other tokens than were emitted")
        if len(text.scores) != len(text.tokens) or len(text.drafted) != len(text.starts):
            raise InvalidResult(f"{cell.key}: {file} has not one score per token, or not one count per cycle")
    if rescoring.seed is None:
        return
    drafted = rescoring.undrafted is None
    expected = [
        (d.block.prompt_set, d.block.round, d.slot, d.positions, d.starts if drafted else ())
        for d in draws(rescoring.seed, blocks, rescoring.count)
        if d.block.cell == cell
    ]
    if [(t.prompt_set, t.round, t.slot, t.positions, t.starts) for t in texts] != expected:
        raise InvalidResult(f"{cell.key}: {file} scores other tokens than its seed draws")


def is_near_tie(gap: float, checks: TokenChecks, dtype: str | None = None) -> bool:
    """True if a token that lies so far below the second engine's choice may still be right. `dtype`: what both computed
    with.

    A gap that is negative or not a number is no near tie: the scores then contradict themselves.
    """
    return 0 <= gap <= checks.max_gap * (FINER if dtype == "float32" else 1)


FINER: Final = 1 / 8
"""How much finer than bfloat16 an engine rounds that computes in float32, at least: TF32, as its products may be, has
three bits more.
"""
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
