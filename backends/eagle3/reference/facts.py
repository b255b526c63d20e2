"""The facts that a loaded reference engine reports for the fingerprint and the report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from specgate.backends.eagle3.lib.chains import ChainLengths
from specgate.backends.eagle3.lib.kv.modes import AS_COMPUTED, KvModes, mode_in_words
from specgate.backends.eagle3.lib.layout import describe_rope, draft_details
from specgate.backends.eagle3.lib.pair import DraftCheckpoint, TargetCheckpoint
from specgate.backends.eagle3.lib.playback import WARNING, details_of
from specgate.backends.eagle3.lib.specpv import PartialPlan
from specgate.backends.eagle3.lib.traffic import pair_traffic
from specgate.backends.eagle3.lib.trees.options import warning
from specgate.backends.eagle3.reference.drafters import StandIn
from specgate.backends.eagle3.reference.tree import TreePlan
from specgate.contract import EngineFacts
from specgate.contract.tape import Tape


def engine_facts(
    target: TargetCheckpoint,
    drafts: DraftCheckpoint | StandIn | None,
    dtype: torch.dtype,
    device: str,
    tape: Tape | None,
    tree: TreePlan | None = None,
    lengths: ChainLengths | None = None,
    kv: KvModes = AS_COMPUTED,
    warnings: Sequence[str] = (),
) -> EngineFacts:
    """The facts. `tape` is the source of the accept counts where these are forced; `tree` is what is drafted; `lengths`
    says where chains end early; `kv` has the formats of the caches; `warnings`: what else a reader must know.
    """
    geometry = target.geometry
    details: dict[str, str | int | float] = {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "target layers x hidden": f"{geometry.layers} x {geometry.hidden}",
        "target rope": describe_rope(geometry.rope),
    }
    draft = drafts if isinstance(drafts, DraftCheckpoint) else None
    if draft is not None:
        details |= draft_details(draft.geometry)
    elif isinstance(drafts, str):
        details["drafter"] = drafts
    computed = str(dtype).removeprefix("torch.")
    if kv.target is not None:
        details["KV cache"] = mode_in_words(kv.target, computed)
    if draft is not None and kv.draft is not None:
        details["draft's KV cache"] = mode_in_words(kv.draft, computed)
    if tree is not None and drafts is not None:
        details["draft tree"] = tree.words
    if lengths is not None and drafts is not None:
        details["chains go on"] = lengths.words
    details |= details_of(tape)
    return EngineFacts(
        backend="reference",
        device=torch.cuda.get_device_name() if device == "cuda" else device,
        dtype=computed,
        vocab=geometry.vocab,
        max_positions=geometry.max_positions,
        eos_token_ids=geometry.eos_token_ids,
        target_sha256=target.sha256,
        draft_sha256=draft.sha256 if draft else None,
        capture_rule=draft.capture.rule if draft else None,
        has_draft=drafts is not None,
        details=details,
        acceptance="forced" if tape else "stand-in" if isinstance(drafts, str) else None,
        tape_sha256=tape.sha256 if tape else None,
        traffic=pair_traffic(geometry, draft.geometry if draft else None, dtype, kv),
        warnings=(
            *(draft.warnings if draft else ()),
            *warnings,
            *not_the_pairs(drafts, tape, tree, lengths),
        ),
    )


def with_partial(facts: EngineFacts, plan: PartialPlan, positions: int) -> EngineFacts:
    """`facts` of an engine that verifies in part, whose requests have at most so many `positions`."""
    details, warnings = {**facts.details, **plan.details(positions)}, (*facts.warnings, *plan.warnings(positions))
    return replace(facts, details=details, warnings=warnings)


def not_the_pairs(
    drafts: DraftCheckpoint | StandIn | None,
    tape: Tape | None,
    tree: TreePlan | None = None,
    lengths: ChainLengths | None = None,
) -> Iterator[str]:
    """Warnings for readers where acceptance is not the pair's own, or not that of a chain."""
    if isinstance(drafts, str):
        yield f"drafter {drafts} stands in for the pair's draft: acceptance says nothing of the pair"
    if tape is not None:
        yield WARNING
    if tree is not None and drafts is not None:
        yield warning(tree.words)
    if lengths is not None and drafts is not None:
        yield lengths.warning
