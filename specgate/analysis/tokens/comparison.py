"""Where do texts part: those of a speculative block from the baseline's, and those of a cell from its earlier ones?

In the same number of steps a speculative block emits more tokens than the baseline block of its pair. The rest of its
text is compared with the `BaselineText` of the prompt set.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specgate.analysis.rounds import pairs_of
from specgate.contract import BASELINE, BaselineText, Block, Cell, Divergence, Finish, LogitCheck, LogitSample
from specgate.contract.token_check import NO_TOKEN

Text = tuple[tuple[int, ...], Finish]
"""The tokens of one slot, as far as they are known, and why they end there."""


# ── texts ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def find_divergences(
    blocks: Sequence[Block], texts: Sequence[BaselineText] = ()
) -> Iterator[tuple[Cell, Divergence, tuple[int, ...]]]:
    """(cell, divergence, the baseline's tokens) for every slot in which a spec block differs from the baseline."""
    for cell in dict.fromkeys(b.cell for b in blocks if b.role.speculative):
        for baseline, spec in pairs_of(blocks, cell):
            for slot, got in enumerate(spec.tokens):
                expected = baseline_text(baseline, slot, texts)
                if divergence := divergence_in(spec, slot, expected, (got, spec.finish[slot])):
                    yield cell, divergence, expected[0]


def find_repeats(blocks: Sequence[Block]) -> Iterator[tuple[Cell, Divergence, tuple[int, ...]]]:
    """(cell, divergence, the first round's tokens) for every slot in which a round differs from the first one over the
    same prompts. Only an engine that is not bit-exact may do so.
    """
    first: dict[tuple[Cell, int], Block] = {}
    for block in blocks:
        if block.warmup or not block.answered_all:
            continue
        earlier = first.setdefault((block.cell, block.prompt_set), block)
        # A block under load that ends by the clock may have fewer requests than another.
        for slot, (expected, got) in enumerate(zip(earlier.tokens, block.tokens, strict=False)):
            if divergence := divergence_in(block, slot, (expected, Finish.STEPS), (got, Finish.STEPS)):
                yield block.cell, divergence, expected


def find_text_divergences(
    blocks: Sequence[Block], texts: Sequence[BaselineText]
) -> Iterator[tuple[Cell, Divergence, tuple[int, ...]]]:
    """(cell, divergence, the block's tokens) for every slot in which an untimed text of the baseline differs from a
    timed block of it. The round is the block's.
    """
    for block in blocks:
        if block.warmup or block.role != BASELINE:
            continue
        for text in texts:
            if (text.point, text.prompt_set) != (block.point, block.prompt_set):
                continue
            for slot, (expected, got) in enumerate(zip(block.tokens, text.tokens, strict=False)):
                if divergence := divergence_in(block, slot, (expected, Finish.STEPS), (got, Finish.STEPS)):
                    yield block.cell, divergence, expected


def divergence_in(block: Block, slot: int, expected: Text, got: Text) -> Divergence | None:
    """The first token at which `got`, of a slot of `block`, differs from `expected`; None where none does."""
    if (at := departure(expected, got)) is None:
        return None
    return Divergence(block.prompt_set, block.round, slot, at, token_at(expected[0], at), token_at(got[0], at))


def baseline_text(baseline: Block, slot: int, texts: Sequence[BaselineText]) -> Text:
    """The baseline's text in `slot`: that of the block, or a longer one of the same prompts that begins with it."""
    tokens, why = baseline.tokens[slot], baseline.finish[slot]
    if why is not Finish.STEPS:
        return tokens, why
    longer = [
        (text.tokens[slot], text.finish[slot])
        for text in texts
        if text.prompt_set == baseline.prompt_set
        and text.point == baseline.point
        and text.tokens[slot][: len(tokens)] == tokens
    ]
    return max(longer, key=lambda text: len(text[0]), default=(tokens, why))


def reaches_end(baseline: Block, spec: Block, texts: Sequence[BaselineText]) -> bool:
    """True if the baseline's text is known as far as `spec` goes, in every slot."""
    return covers([baseline_text(baseline, slot, texts) for slot in range(len(spec.tokens))], spec)


def covers(baseline: Sequence[Text], spec: Block) -> bool:
    """True if these texts of the baseline, one per slot, go as far as `spec` does."""
    return all(
        len(expected) >= len(tokens) or why is not Finish.STEPS
        for tokens, (expected, why) in zip(spec.tokens, baseline, strict=True)
    )


def departure(baseline: Text, spec: Text) -> int | None:
    """The index at which two texts part; None where they do not.

    They part at a token that differs, or at the end of one of them, unless it ended because its steps were spent.
    """
    (a, _), (b, _) = baseline, spec
    if (at := first_difference(a, b)) is not None:
        return at
    _, why = baseline if len(a) < len(b) else spec
    ended = len(a) != len(b) and why is not Finish.STEPS
    return min(len(a), len(b)) if ended else None


def token_at(tokens: Sequence[int], index: int) -> int:
    """The token at `index`, or NO_TOKEN past the end."""
    return tokens[index] if index < len(tokens) else NO_TOKEN


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """The first index at which `a` and `b` differ, over the length that both have."""
    both = min(len(a), len(b))
    if a[:both] == b[:both]:
        return None
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)


# ── logits ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def check_logits(cell: Cell, samples: Sequence[LogitSample]) -> LogitCheck | None:
    """Compare the sampled logits of a spec cell with those of its baseline; None where one of them has no sample."""
    of = {sample.cell: sample for sample in samples}
    baseline, spec = of.get(Cell(cell.point, BASELINE).key), of.get(cell.key)
    if baseline is None or spec is None or baseline.prompt_set != spec.prompt_set:
        return None
    there = [p for p in spec.positions if p in baseline.positions]
    slots = range(min(len(baseline.digests), len(spec.digests)))
    unlike = [(slot, p) for slot in slots for p in there if digest_at(baseline, slot, p) != digest_at(spec, slot, p)]
    first = (spec.prompt_set, *unlike[0]) if unlike else None
    return LogitCheck(len(there) * len(slots), len(unlike), first)


def digest_at(sample: LogitSample, slot: int, position: int) -> str:
    """The digest of the logits that the token at `position` of `slot` was chosen from."""
    return sample.digests[slot][sample.positions.index(position)]
