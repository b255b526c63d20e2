"""Does a cell repeat itself: loops in its texts, and the same tokens whenever it is given the same prompts."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Final

from specgate.analysis.tokens.comparison import first_difference
from specgate.contract import BaselineText, Block, Divergence, Value

LOOPS: Final = 0.3
"""A text of whose 8-grams more than this share are repeats counts as looping."""


def repeated_ngram_share(tokens: Sequence[int], n: int = 8) -> float:
    """Share of the n-grams of `tokens` that occurred earlier in it; 0 where there are fewer than n tokens.

    Loops are easy to draft and inflate acceptance. This figure says how much of the text consists of them.
    """
    total = len(tokens) - n + 1
    if total < 1:
        return 0.0
    return 1 - len({tuple(tokens[i : i + n]) for i in range(total)}) / total


def repeat_values(
    blocks: Sequence[Block], beside: Sequence[BaselineText] = (), repeats: Sequence[Divergence] = ()
) -> Iterator[Value]:
    """Yield the share of loops in the generated text, once per prompt, and the number of blocks that repeat their
    prompts with other tokens. Blocks in which a server refused requests are left out.

    `beside`: untimed texts that must be the same, too.
    `repeats`: places where a round leaves the first one, or an untimed text leaves a round, near ties among them.
    """
    if not (blocks := [block for block in blocks if block.answered_all]):
        return
    first: dict[int, Block] = {}
    # With the token that came: another one at the same place is another divergence, and may be a wrong token.
    near_ties = {(d.prompt_set, d.round, d.slot, d.position, d.got) for d in repeats if d.near_tie}
    untold = {(d.prompt_set, d.round, d.slot, d.position, d.got) for d in repeats if d.untold}
    excused: set[tuple[int, int, int, int, int]] = set()
    mismatches = unknown = 0

    def compare(earlier: Block, tokens: Sequence[Sequence[int]], round_: int) -> bool:
        """True if `tokens`, those of `round_`, leave `earlier` where no near tie explains it."""
        nonlocal unknown
        divergences = {
            (earlier.prompt_set, round_, slot, at, came[at])
            for slot, (had, came) in enumerate(zip(earlier.tokens, tokens, strict=False))
            if (at := first_difference(had, came)) is not None
        }
        excused.update(divergences & near_ties)
        unknown += bool(divergences - near_ties) and divergences - near_ties <= untold
        return bool(divergences - near_ties)

    for block in blocks:
        mismatches += compare(first.setdefault(block.prompt_set, block), block.tokens, block.round)
    for text in beside:
        if text.point == blocks[0].point and (timed := first.get(text.prompt_set)):
            mismatches += compare(timed, text.tokens, timed.round)
    shares = [repeated_ngram_share(tokens) for block in first.values() for tokens in block.tokens]
    yield Value("repeated_8gram_share", statistics.fmean(shares), "mean", len(shares))
    yield Value("repeat_mismatches", float(mismatches), "count", len(blocks))
    if unknown:
        yield Value("repeat_unknown", float(unknown), "count", len(blocks))
    if excused:
        yield Value("repeat_near_ties", float(len(excused)), "count", sum(len(b.tokens) for b in blocks))
