"""Are the tokens of a speculative block the baseline's?

In the same number of steps a speculative block emits more tokens than the baseline block of its pair. The rest of its
text is compared with the `BaselineText` of the prompt set.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from specgate.analysis.rounds import pairs_of
from specgate.analysis.tokens.last_place import gap_between, unit_of
from specgate.contract import (
    BASELINE,
    BaselineText,
    Block,
    Cell,
    Divergence,
    Finish,
    LogitCheck,
    LogitSample,
    Margin,
    NearTies,
    TokenCheck,
)
from specgate.contract.token_check import NO_TOKEN

Text = tuple[tuple[int, ...], Finish]
"""The tokens of one slot, as far as they are known, and why they end there."""


def check_tokens(
    cell: Cell,
    blocks: Sequence[Block],
    margins: Sequence[Margin],
    ties: NearTies,
    texts: Sequence[BaselineText] = (),
    samples: Sequence[LogitSample] = (),
) -> TokenCheck:
    """Compare the tokens of a spec cell with the baseline's.

    A divergence is a near tie where `ties` covers the recorded margin between the top-2 logits. Behind a divergence
    nothing is compared.
    """
    of_cell = (d for of_cell, d, _ in find_divergences(blocks, texts) if of_cell == cell)
    divergences = with_margins(of_cell, cell, margins, ties)
    pairs = list(pairs_of(blocks, cell))
    known = [[baseline_text(baseline, slot, texts) for slot in range(len(spec.tokens))] for baseline, spec in pairs]
    common = {
        (spec.prompt_set, spec.round, slot): min(len(expected), len(tokens))
        for (_, spec), of_slots in zip(pairs, known, strict=True)
        for slot, (tokens, (expected, _)) in enumerate(zip(spec.tokens, of_slots, strict=True))
    }
    common |= {(d.prompt_set, d.round, d.slot): d.position + 1 for d in divergences}
    cut_short = {
        spec.prompt_set for (_, spec), of_slots in zip(pairs, known, strict=True) if not covers(of_slots, spec)
    }
    return TokenCheck(
        compared_tokens=sum(common.values()),
        divergences=divergences,
        emitted_tokens=sum(len(tokens) for _, spec in pairs for tokens in spec.tokens),
        whole_sets=tuple(sorted({spec.prompt_set for _, spec in pairs} - cut_short)),
        logits=check_logits(cell, samples),
        sequences=len(common),
    )


def with_margins(
    divergences: Iterable[Divergence], cell: Cell, margins: Sequence[Margin], ties: NearTies
) -> tuple[Divergence, ...]:
    """Divergences of `cell` with their recorded margins, and which of them are near ties: the rare ones, too, if they
    are no more than `ties` allows.
    """
    known = {(m.prompt_set, m.round, m.slot, m.position): m for m in margins if m.cell == cell.key}
    judged: list[Divergence] = []
    rare: set[int] = set()
    for d in divergences:
        m = known.get((d.prompt_set, d.round, d.slot, d.position))
        if m is None:
            judged.append(d.judged(None, ties))
        elif not ties.ulps:
            judged.append(d.judged(m.top1 - m.top2, ties))
        else:
            judged.append(judged_by(d, m.top or (m.top1, m.top2), m.top_tokens, ties))
            if {d.expected, d.got} <= set(m.top_tokens) and ties.rarely_covers(judged[-1].margin, judged[-1].unit):
                rare.add(len(judged) - 1)
    return but_for_rare(judged, rare, ties)


def but_for_rare(judged: Iterable[Divergence], rare: Collection[int], ties: NearTies) -> tuple[Divergence, ...]:
    """`judged`, where those at the indices `rare` are near ties as well if their divergences are no more than `ties`
    allows. The end of a text never is.
    """
    all_judged = tuple(judged)
    few = {all_judged[i].key for i in rare}
    distinct = few | {d.key for d in all_judged if d.near_tie}
    if len(few) > ties.allowed_rare(len(distinct)):
        return all_judged
    return tuple(replace(d, near_tie=d.near_tie or i in rare) for i, d in enumerate(all_judged))


def judged_by(d: Divergence, top: Sequence[float], top_tokens: Sequence[int], ties: NearTies) -> Divergence:
    """`d` judged by the largest logits there. A token that is not among them is no near tie, and its gap is larger than
    that of the last one, which is then recorded.
    """
    gap, unit = gap_between((d.expected, d.got), top, top_tokens), unit_of(top)
    if not top_tokens:  # whose the largest logits are is not known, so that any token could hide behind two close ones
        return d.judged(gap, NearTies(), unit)
    if gap == math.inf:
        return replace(d.judged(None, ties, unit), margin=top[0] - top[-1])
    return d.judged(gap, ties, unit)


# ── texts ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def find_divergences(
    blocks: Sequence[Block], texts: Sequence[BaselineText] = ()
) -> Iterator[tuple[Cell, Divergence, tuple[int, ...]]]:
    """(cell, divergence, the baseline's tokens) for every slot in which a spec block differs from the baseline.

    A divergence is the first token that differs. Its margin is not known yet.
    """
    for cell in dict.fromkeys(b.cell for b in blocks if b.role.speculative):
        for baseline, spec in pairs_of(blocks, cell):
            for slot, got in enumerate(spec.tokens):
                expected, why = baseline_text(baseline, slot, texts)
                if (at := departure((expected, why), (got, spec.finish[slot]))) is not None:
                    place = (spec.prompt_set, spec.round, slot, at)
                    divergence = Divergence(
                        *place, token_at(expected, at), token_at(got, at), margin=None, near_tie=False
                    )
                    yield cell, divergence, expected


def find_repeats(blocks: Sequence[Block]) -> Iterator[tuple[Cell, Divergence, tuple[int, ...]]]:
    """(cell, divergence, the first round's tokens) for every slot in which a round differs from the first one over the
    same prompts. Only an engine that is not bit-exact may do so.
    """
    first: dict[tuple[Cell, int], Block] = {}
    for block in blocks:
        if block.warmup or not block.answered_all:
            continue
        earlier = first.setdefault((block.cell, block.prompt_set), block)
        for slot, (expected, got) in enumerate(zip(earlier.tokens, block.tokens, strict=True)):
            if (at := first_difference(expected, got)) is not None:
                place = (block.prompt_set, block.round, slot, at)
                yield block.cell, Divergence(*place, expected[at], got[at], margin=None, near_tie=False), expected


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
                if (at := first_difference(expected, got)) is not None:
                    place = (block.prompt_set, block.round, slot, at)
                    yield block.cell, Divergence(*place, expected[at], got[at], margin=None, near_tie=False), expected


def repeats_of(
    cell: Cell,
    blocks: Sequence[Block],
    margins: Sequence[Margin],
    ties: NearTies,
    texts: Sequence[BaselineText] = (),
) -> tuple[Divergence, ...]:
    """Divergences among repetitions: rounds of `cell` that leave the first one over the same prompts, and untimed
    baseline `texts` that leave a round. Rounds of an engine that must be bit-exact are not among them.
    """
    repeats = [*(find_repeats(blocks) if ties.ulps else ()), *(find_text_divergences(blocks, texts) if ties else ())]
    return with_margins((d for of, d, _ in repeats if of == cell), cell, margins, ties)


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
