"""Are the tokens of a cell right: the baseline's, and the same in every round, but for near ties?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from specgate.analysis.rounds import pairs_of
from specgate.analysis.tokens.comparison import (
    baseline_text,
    check_logits,
    covers,
    find_divergences,
    find_repeats,
    find_text_divergences,
)
from specgate.analysis.tokens.continuations import Departure, follow_check, left_again, parted_texts
from specgate.analysis.tokens.near_ties import PARTED, REPEATED, Sight, Standing, law_of, sight
from specgate.contract import (
    BaselineText,
    Block,
    Cell,
    Divergence,
    Followed,
    LogitSample,
    Margin,
    NearTies,
    TieLaw,
    TokenCheck,
)
from specgate.contract.token_check import NO_TOKEN


def check_tokens(
    cell: Cell,
    blocks: Sequence[Block],
    margins: Sequence[Margin],
    ties: NearTies,
    texts: Sequence[BaselineText] = (),
    samples: Sequence[LogitSample] = (),
    followed: Sequence[Followed] = (),
    most: int = 0,
) -> TokenCheck:
    """Compare the tokens of a spec cell with the baseline's.

    `ties` says which divergences are near ties. Behind a divergence nothing is compared with the baseline. If near ties
    are told by law, plain decoding from there on, in `followed`, is compared: of `most` texts.
    """
    left = [d for of_cell, d, _ in find_divergences(blocks, texts) if of_cell == cell]
    going_on = parted_texts(cell, blocks, left, most) if most and ties.by_law else ()
    behind = left_again(going_on, followed)
    divergences, law, standing = judged(left, cell, margins, ties, PARTED, behind)
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
        followed=follow_check(
            going_on,
            followed,
            near_ties={d.place for d, at in zip(behind, standing, strict=True) if at.near},
            unknown={d.place for d, at in zip(behind, standing, strict=True) if at.x is None and at.rule is None},
        ),
        law=law,
    )


def repeats_of(
    cell: Cell, blocks: Sequence[Block], margins: Sequence[Margin], ties: NearTies, texts: Sequence[BaselineText] = ()
) -> tuple[Divergence, ...]:
    """Divergences among repetitions: rounds of `cell` that leave the first one over the same prompts, and untimed
    baseline `texts` that leave a round. Rounds of an engine that must be bit-exact are not among them.

    If the gaps are too wide all together, none of them is a near tie.
    """
    repeats = [*(find_repeats(blocks) if ties.by_law else ()), *(find_text_divergences(blocks, texts) if ties else ())]
    divergences, law, _ = judged((d for of, d, _ in repeats if of == cell), cell, margins, ties, REPEATED)
    if law is not None and law.too_wide:
        return tuple(replace(d, near_tie=False) for d in divergences)
    return divergences


def judged(
    divergences: Iterable[Divergence],
    cell: Cell,
    margins: Sequence[Margin],
    ties: NearTies,
    error: float = PARTED,
    behind: Sequence[Departure] = (),
) -> tuple[tuple[Divergence, ...], TieLaw | None, list[Standing]]:
    """Return (divergences of `cell` with their recorded gaps, the near ties all together, where `behind` stand).

    `behind`: places behind a near tie where plain decoding leaves the text; the law is over both. `error`: its chance
    of a false alarm per run. Rounds that part alike count as one place.
    """
    known = {(m.prompt_set, m.round, m.slot, m.position): m for m in margins if m.cell == cell.key}
    of = [(d, known.get((d.prompt_set, d.round, d.slot, d.position))) for d in divergences]
    if not ties.by_law:
        return tuple(d.judged(m.top1 - m.top2 if m else None, ties) for d, m in of), None, []
    sights: dict[object, Sight] = {}
    for d, m in of:
        if m is None:
            continue
        seen, before = sight((d.expected, d.got), m), sights.get(d.key)
        if before is None or before.gap is None or (seen.gap is not None and seen.gap > before.gap):
            sights[d.key] = seen
    sights |= {("behind", *d.place): sight(d.tokens, d.shown) for d in behind}
    if not sights:
        return tuple(d.judged(None, ties) for d, _ in of), None, []
    law, standing = law_of(list(sights.values()), error / ties.cells, ties.max_sigma)
    at = dict(zip(sights, standing, strict=True))
    parted = tuple(d.judged(None, ties) if m is None else standing_at(d, sights[d.key], at[d.key], ties) for d, m in of)
    return parted, law, [at["behind", *d.place] for d in behind]


def standing_at(d: Divergence, of: Sight, at: Standing, ties: NearTies) -> Divergence:
    """`d` with what the law says of its place.

    A gap below the margin of `ties` is a near tie, whatever rounding there is, if both tokens are shown.
    """
    d = replace(d.judged(of.gap, ties), x=at.x, sigma=at.sigma, rule=at.rule)
    d = replace(d, near_tie=not of.outside and (at.near or d.near_tie))
    return replace(d, rule="outside") if d.untold and NO_TOKEN in (d.expected, d.got) else d
