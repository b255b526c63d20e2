"""Load a pair into a reference engine, after checking that the engine can do what the plan asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from specgate.backends.eagle3.lib.chains import BY_BATCH, CONFIDENCE, lengths_of
from specgate.backends.eagle3.lib.kv.modes import DRAFT_KV, KV, calibration_warnings, check_head, kv_modes
from specgate.backends.eagle3.lib.pair import DraftCheckpoint, load_draft, load_target
from specgate.backends.eagle3.lib.playback import TAPE, Playback
from specgate.backends.eagle3.lib.refusals import refuse_pairs
from specgate.backends.eagle3.lib.specpv import NAMES as PARTIAL_NAMES
from specgate.backends.eagle3.lib.specpv import plan_partial
from specgate.backends.eagle3.reference.drafters import STAND_INS, StandIn
from specgate.backends.eagle3.reference.engine import ReferenceEngine
from specgate.backends.eagle3.reference.sampling import Sampler
from specgate.backends.eagle3.reference.tree import check_ranks, plan_tree
from specgate.checkpoints.auxiliary_layers import parse_boundaries
from specgate.checkpoints.geometry import TargetSizes
from specgate.checkpoints.spec_config.launch_checks import check_chain
from specgate.contract.protocols import OpenRequest
from specgate.errors import BackendError, EnvironmentRefused, UsageError
from specgate.sampling.settings import check_settings

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
OPTIONS = (
    *("device", "capture", "drafter", "spec_config", TAPE, "tree", "tree_width"),
    *(CONFIDENCE, BY_BATCH, KV, DRAFT_KV, *PARTIAL_NAMES),
)
OWN = "eagle3"
"""The name of the pair's own draft among the drafters."""


def open_engine(request: OpenRequest) -> ReferenceEngine:
    """Load `request.pair`.

    Options: `device` (auto, cpu, cuda), `capture` (boundaries such as 2,18,34), `drafter` (eagle3, none, random,
    oracle), `spec_config` (a speculative config that this one's must agree with), `tape` (a file
    of accept counts to replay), `tree` (a tree file, or dynamic:NODES) and `tree_width`, `confidence` (a chain ends
    where the draft is less sure), `k_by_batch` (the most draft tokens by how many requests run), `kv` and `draft_kv`
    (the formats of the caches of target and draft: bf16, fp8, nvfp4), `specpv` (lossy or lossless: verification over a
    part of the cache) and what `lib.specpv` has beside it.

    Raises UsageError for options, draft lengths and contexts that make no sense, CheckpointError for a bad pair,
    EnvironmentRefused where it does not fit into memory, BackendError for a missing draft.
    """
    refuse_unknown(request.options, OPTIONS, "the reference engine")
    refuse_pairs(request.options, "reference", request.sampling)
    device = pick_device(request.options.get("device", "auto"))
    if device == "cuda":  # what `ops.lower_right` needs there is not to be imported while a prefill is timed
        from torch.nn.attention.bias import causal_lower_right  # noqa: F401
    tree, lengths = plan_tree(request.options, request.max_k, device), lengths_of(request.options)
    instead, playback, kv = *what_drafts(request), kv_modes(request.options)
    partial, sampler = plan_partial(request.options), sampler_for(request)
    dtype = DTYPES[request.dtype]
    target = load_target(request.pair.target, dtype, device, request.pair.rope)
    if request.max_positions > target.geometry.max_positions:
        raise UsageError(
            f"{target.config_file}: max_position_embeddings = {target.geometry.max_positions}, but the plan needs "
            f"{request.max_positions} positions",
            hint="choose a shorter context, or give the scenario a rope scaling whose factor covers it",
        )
    check_head(kv.target, target.geometry.head_dim, str(target.config_file))
    refuse_pairs(request.options, "reference", request.sampling, experts=target.geometry.experts is not None)
    warnings = list(calibration_warnings(request.pair.target, kv.target, "the target", KV))
    drafts: DraftCheckpoint | StandIn | None = None
    if request.max_k:
        drafts = instead or own_draft(request, target.geometry, target.sha256, dtype, device)
        if tree is not None and isinstance(drafts, DraftCheckpoint):
            check_ranks(tree, drafts.geometry.draft_vocab)
        if isinstance(drafts, DraftCheckpoint):
            assert request.pair.draft is not None
            check_head(kv.draft, drafts.geometry.head_dim, str(request.pair.draft), DRAFT_KV)
            warnings += calibration_warnings(request.pair.draft, kv.draft, "the draft", DRAFT_KV)
    return ReferenceEngine(
        target,
        drafts,
        max_batch=request.max_batch,
        max_positions=request.max_positions,
        device=device,
        playback=playback,
        tree=tree if tree is not None and tree.branches else None,
        lengths=lengths,
        sampler=sampler,
        kv=kv,
        partial=partial,
        spare_rows=partial.rows_behind(request.max_k) if partial else 0,
        warnings=warnings,
    )


def sampler_for(request: OpenRequest) -> Sampler | None:
    """Return the sampler; None for greedy decoding. Raises UsageError for settings and options that make no sense."""
    if request.sampling is None:
        return None
    check_settings(request.sampling)
    drafter, rejecting = request.options.get("drafter", OWN), request.sampling.method == "rejection"
    if drafter == "oracle":
        why = "it proposes the target's greedy tokens, which sampling need not draw"
        raise UsageError(f"option drafter = oracle with sampling: {why}", hint="drafter = eagle3, none or random")
    if drafter == "none" and rejecting:
        why = "what it proposes is no token, so that it cannot be verified by rejection"
        raise UsageError(f"option drafter = none: {why}", hint="sampling.method: coupled, or drafter = random")
    return Sampler(request.sampling)


def refuse_unknown(options: Mapping[str, str], known: Sequence[str], engine: str) -> None:
    """Raise UsageError for options that `engine` does not have."""
    if unknown := [name for name in options if name not in known]:
        raise UsageError(f"option {', '.join(unknown)}: not known", hint=f"{engine} knows: {', '.join(known)}")


def what_drafts(request: OpenRequest) -> tuple[StandIn | None, Playback | None]:
    """(the stand-in for the pair's draft, the tape) that the options name, None where they name none.

    Raises UsageError for options and draft lengths that make no sense, BackendError for a missing draft.
    """
    options = request.options
    instead = pick_drafter(options.get("drafter", OWN))
    playback = Playback.of(request)
    if request.max_k:
        check_chain(request.max_k, f"spec-{request.max_k}", options)
        if request.pair.draft is None and instead is None:
            raise BackendError(
                f"pair {request.pair.name!r} has no draft, but spec-{request.max_k} was asked for",
                hint=f"a stand-in needs none: option drafter = {', '.join(STAND_INS)}",
            )
    return instead, playback


def own_draft(
    request: OpenRequest, target: TargetSizes, target_sha256: str, dtype: torch.dtype, device: str
) -> DraftCheckpoint:
    """Load the pair's draft and check that it can draft the longest chain asked for."""
    folder = request.pair.draft
    assert folder is not None
    capture = parse_boundaries(text) if (text := request.options.get("capture")) else None
    draft = load_draft(folder, target, dtype, device, capture, target_sha256)
    check_chain(request.max_k, str(folder), {}, target=target, draft=draft.geometry, positions=request.max_positions)
    return draft


def pick_drafter(option: str) -> StandIn | None:
    """The stand-in of that name; None for the pair's own draft. Raises UsageError for any other name."""
    for name in STAND_INS:
        if option == name:
            return name
    if option != OWN:
        raise UsageError(f"option drafter = {option!r}", hint=f"known: {', '.join((OWN, *STAND_INS))}")
    return None


def pick_device(option: str) -> str:
    """Resolve `auto`, `cpu` or `cuda`. Raises EnvironmentRefused where CUDA is asked for and absent."""
    if option == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if option not in ("cpu", "cuda"):
        raise UsageError(f"option device = {option!r}", hint="known: auto, cpu, cuda")
    if option == "cuda" and not torch.cuda.is_available():
        raise EnvironmentRefused("option device = 'cuda', but torch sees no CUDA GPU here")
    return option
