"""Options `-o tp=N` and `-o draft_tp=N`, and their refusal where no kernel is made for them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from specgate.backends.eagle3.lib.shard import Shard
from specgate.checkpoints.geometry import DraftGeometry, TargetGeometry
from specgate.contract.protocols import OpenRequest
from specgate.errors import UsageError

TP: Final = "tp"
DRAFT_TP: Final = "draft_tp"
RANKS: Final = (1, 2, 4)
"""So many GPUs may share a target."""
K_CHUNK: Final = 32
"""Of the feed-forward width, a GPU has a multiple of so much."""


def chosen_ranks(request: OpenRequest) -> int:
    """Return the number of GPUs that share the target. Raises UsageError for another number."""
    text = request.options.get(TP, "1")
    if text not in map(str, RANKS):
        raise UsageError(f"option {TP} = {text!r}", hint=f"known: {', '.join(map(str, RANKS))}")
    return int(text)


def check_target(ranks: int, g: TargetGeometry, where: Path) -> None:
    """Raise UsageError for a target that cannot be divided among `ranks` GPUs."""
    if ranks == 1:
        return
    option = f"option {TP} = {ranks}: {where}"
    hint = f"{TP}={' or '.join(str(n) for n in RANKS if n == 1 or not cannot_divide(n, g))}"
    if why := cannot_divide(ranks, g):
        raise UsageError(f"{option}: {why}", hint=hint)


def cannot_divide(ranks: int, g: TargetGeometry | DraftGeometry) -> str | None:
    """Key and value of a size that cannot be divided among `ranks` GPUs, and what it should be; None where all can."""
    if unfit := Shard(0, ranks).unfit(g):
        key, value = next(iter(unfit.items()))
        return f"{key} = {value} cannot be divided by {ranks}"
    if g.intermediate // ranks % K_CHUNK:
        experts = g.experts if isinstance(g, TargetGeometry) else None
        whole = "" if experts is None else ", whole blocks of MXFP4 numbers of every expert"
        return f"intermediate_size = {g.intermediate}: each GPU needs a multiple of {K_CHUNK} of it{whole}"
    return None


def asked_draft_ranks(request: OpenRequest, ranks: int) -> int | None:
    """Among how many GPUs the draft is to be divided: all `ranks` of the target, or 1, where each has it whole; None
    where the option is left out. Raises UsageError for another number.
    """
    text = request.options.get(DRAFT_TP)
    if text is None:
        return None
    if text not in {"1", str(ranks)}:
        raise UsageError(
            f"option {DRAFT_TP} = {text!r} with {TP} = {ranks}: every GPU that shares the target has a part of the "
            "draft, or all of it",
            hint=f"{DRAFT_TP}={' or '.join(dict.fromkeys(['1', str(ranks)]))}",
        )
    return int(text)


def chosen_draft_ranks(
    ranks: int, draft_ranks: int | None, g: DraftGeometry, where: Path, *, tree: bool = False
) -> int:
    """Return the number of GPUs that the draft is divided among: `draft_ranks`, else those of the target if its sizes
    allow that. A draft of a `tree` is whole on each.

    Raises UsageError for a draft that would need the target's whole LM head on every GPU, and for one that cannot be
    divided as asked.
    """
    if ranks > 1 and not g.own_lm_head:
        raise UsageError(
            f"option {TP} = {ranks}: {where}: the draft has no lm_head.weight and borrows the target's, which is "
            "divided among the GPUs",
            hint=f"a draft with an LM head of its own, or {TP}=1",
        )
    why = cannot_divide(ranks, g)
    if draft_ranks is None:
        return 1 if why or tree else ranks
    if draft_ranks > 1 and why:
        raise UsageError(f"option {DRAFT_TP} = {draft_ranks}: {where}: {why}", hint=f"{DRAFT_TP}=1")
    return draft_ranks
