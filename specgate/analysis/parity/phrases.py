"""A comparison by stage in words: what came of it, and what is usually the cause."""

from __future__ import annotations

from collections.abc import Iterator

from specgate.analysis.parity.causes import IdMap, usual_causes
from specgate.analysis.parity.comparison import Parity, StageFinding


def verdict(parity: Parity) -> tuple[str, str]:
    """(word, reason) of what came of it."""
    if parity.first is not None:
        return "DEPARTS", f"first at {parity.first.stage}"
    if parity.ids is not None:
        return "OTHER TOKENS", "every stage agrees, but draft ids mean other tokens"
    return "AGREES", f"{len(parity.stages)} stages, to within what rounding in {parity.dtype} explains"


def leading_words(stage: StageFinding) -> str:
    parts = [f"top {part.k} {part.overlap:.1%} (worst row {part.worst_overlap:.0%})" for part in stage.leading]
    beyond = stage.leading[-1].beyond_one_step
    return f"{stage.stage}: {', '.join(parts)}; {beyond} tokens beyond one step"


CAUSE = "usual cause"


def hints(parity: Parity) -> Iterator[tuple[str, str]]:
    """(kind, text): what is usually the cause, and what was not compared."""
    if parity.first is not None and parity.first.distance.error <= parity.first.tolerance:
        d = parity.first.distance
        yield (
            parity.first.stage,
            f"most rows agree, but not position {parity.first.worst_position} (error {d.worst_error:.1e}, allowed "
            f"{parity.first.worst_tolerance:.1e})",
        )
    if parity.first is not None:
        for cause in usual_causes(parity.first.stage):
            yield CAUSE, cause
    if parity.ids is not None:
        yield "d2t", id_words(parity.ids)
    for note in parity.notes:
        yield "not compared", note


def advice(parity: Parity) -> Iterator[str]:
    """The hints as lines, the causes as a list under a title."""
    titled = False
    for kind, text in hints(parity):
        if kind == CAUSE and parity.first is not None and not titled:
            titled = True
            yield f"usual causes where {parity.first.stage} is the first:"
        yield f"- {text}" if kind == CAUSE else f"{kind}: {text}"


def id_words(ids: IdMap) -> str:
    kinds = {
        "off by a constant": f"B's ids are all off by {ids.b - ids.a}",
        "offsets in A": "A has offsets (d2t), where ids are due: row + d2t[row]",
        "offsets in B": "B has offsets (d2t), where ids are due: row + d2t[row]",
        "other ids": "another draft vocabulary, or another order of it",
    }
    return (
        f"{ids.differ} of {ids.rows} draft ids mean another target token; row {ids.row} is {ids.a} in A and {ids.b} in "
        f"B: {kinds[ids.kind]}"
    )
