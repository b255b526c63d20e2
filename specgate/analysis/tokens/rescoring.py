"""Check a second engine's scores of the tokens of a cell, and its run of the pair's draft along them.

Tokens and cycles are drawn when the last token is there, from a seed that nobody knows before. Every text contributes:
of texts that are equally long, n drawn tokens all miss junk that is a share p of them with a chance of (1 − p)^n at
most, however it is spread.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from specgate.analysis.tokens.comparison import first_difference
from specgate.analysis.tokens.drafts_along import check_drafts, whole_cycles
from specgate.analysis.tokens.near_ties import Sight, law_of, sight
from specgate.contract import BASELINE, Block, Cell, Margin, RescoredText, Rescoring, Score, ScoreCheck
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


def check_scores(cell: Cell, blocks: Sequence[Block], rescoring: Rescoring, error: float) -> ScoreCheck:
    """Reduce the scores of `cell` in `rescoring` to one result.

    `blocks`: the measured blocks of its point. `error`: the chance that an engine which only rounds is called wrong.
    Raises InvalidResult where other tokens were scored than the seed draws, or than they emitted.
    """
    engine = ", ".join(filter(None, (rescoring.engine, rescoring.dtype, rescoring.device)))
    texts = texts_of(cell, rescoring.texts)
    if rescoring.unscored is not None:
        return ScoreCheck(engine, unscored=rescoring.unscored, lost=rescoring.lost)
    check_drawn(cell, blocks, texts, rescoring)
    looked = looked_at(cell, texts, rescoring)
    seen = [(place, sight_of(token, score, looked.get(place), rescoring)) for place, token, score in differing(texts)]
    apart = [(place, of) for place, of in seen if of.gap != 0 or of.outside]
    law, standing = law_of([of for _, of in apart], error)
    wrong = [at.rule == "outside" or (at.x is not None and not at.near) for at in standing]
    gaps = [math.inf if of.outside else of.gap or 0.0 for _, of in apart]
    worst = max(zip(wrong, gaps, [place for place, _ in apart], strict=True), default=None)
    return ScoreCheck(
        engine=engine,
        scored=sum(len(text.scores) for text in texts),
        near_ties=len(apart) - sum(wrong) - law.unknown,
        wrong=sum(wrong),
        settled=len(seen) - len(apart),
        gap_max=worst[1] if worst and worst[1] < math.inf else None,
        worst=worst[2] if worst else None,
        law=law if apart else None,
        unsettled=rescoring.again.unscored if rescoring.again and law.unknown else None,
        drafts=check_drafts(cell, blocks, texts, rescoring),
    )


def sight_of(token: int, score: Score, look: Margin | None, rescoring: Rescoring) -> Sight:
    """Return what is known of a token that the second engine would not have chosen. Its gap is 0 if it would have in
    float32, and infinite if scores contradict themselves.
    """
    if not score.best_logit >= score.logit:
        return Sight(math.inf)
    if rescoring.dtype == "float32":
        return Sight(score.best_logit - score.logit, FLOAT32_SIGMA**2, MANY, "A")
    return Sight() if look is None else sight((token,), look)


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


FLOAT32_SIGMA: Final = 2.0**-6
"""Rounding error of a logit that is assumed of an engine in float32, whose own is not seen: its products may be in
TF32, which has three bits more than bfloat16. Engines round by 0.05 to 0.12 in that.
"""
MANY: Final = 1000
"""Degrees of freedom of what is assumed."""
Place = tuple[int, int, int, int]
"""Prompt set, round, slot and index of a token."""


def looked_at(cell: Cell, texts: Sequence[RescoredText], rescoring: Rescoring) -> dict[Place, Margin]:
    """The second engine's look at the tokens of `cell` that it would not have chosen. Raises InvalidResult where it is
    one at other tokens, or says not as much of every candidate.
    """
    looks = {m.place[1:]: m for m in (rescoring.again.places if rescoring.again else ()) if m.cell == cell.key}
    if looks.keys() - {place for place, _, _ in differing(texts)}:
        raise InvalidResult(f"{cell.key}: samples/rescored.jsonl looks at tokens again that were chosen, or not scored")
    for m in looks.values():
        if len(m.second) != len(m.top_tokens) or len(m.float32) not in (0, len(m.top_tokens)) or m.top or m.again:
            raise InvalidResult(f"{cell.key}: samples/rescored.jsonl has not one logit for each of a place's tokens")
    return looks


def texts_of(cell: Cell, texts: Sequence[RescoredText]) -> list[RescoredText]:
    """Those of `cell`."""
    return [text for text in texts if text.cell == cell.key]


def differing(texts: Iterable[RescoredText]) -> list[tuple[Place, int, Score]]:
    """(Its place, token, its score) of every token that the second engine would not have chosen.

    Two texts that begin alike have a place in common, which counts once.
    """
    places = {
        (place[0], place[2:], token): (place, token, score)
        for text in texts
        for place, token, score in placed(text)
        if token != score.best
    }
    return list(places.values())


def placed(text: RescoredText) -> Iterator[tuple[Place, int, Score]]:
    """(Its place, token, its score) of every scored token of `text`."""
    for position, token, score in zip(text.positions, text.tokens, text.scores, strict=True):
        yield (text.prompt_set, text.round, text.slot, position), token, score
