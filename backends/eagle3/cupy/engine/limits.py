"""Limits of the kernels and of memory, checked before anything is compiled or allocated."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from specgate.backends.eagle3.cupy.engine.prefill import workspace_bytes
from specgate.backends.eagle3.cupy.engine.prefill_experts import expert_workspace_bytes
from specgate.backends.eagle3.cupy.kernels.experts.expert_config import MOST_EXPERTS, MOST_PLACES, MOST_ROWS
from specgate.backends.eagle3.cupy.kernels.matmul.gemm_config import MAX_ROWS
from specgate.backends.eagle3.cupy.kernels.sampling.launchers import MOST_COLUMNS
from specgate.backends.eagle3.cupy.memory.buffers import Buffers, bytes_of
from specgate.backends.eagle3.cupy.memory.sizes import DraftTree, Sizes
from specgate.backends.eagle3.lib.memory import free_bytes
from specgate.backends.eagle3.lib.specpv import REFRESH, SPECPV, PartialPlan
from specgate.checkpoints.geometry import DraftGeometry, ExpertGeometry, TargetGeometry
from specgate.contract import Sampling
from specgate.contract.protocols import OpenRequest
from specgate.errors import CheckpointError, EnvironmentRefused, UsageError
from specgate.sampling.settings import check_settings

HEAD_DIMS = (64, 128)
MAX_GROUP = 8
MAX_QUERY_ROWS = 8


def check_request(request: OpenRequest) -> None:
    """Raise UsageError where the plan asks for what no checkpoint could give here."""
    if request.dtype != "bfloat16":
        raise UsageError(
            f"back end cupy: dtype = {request.dtype}: it computes in bfloat16 only",
            hint="use dtype: bfloat16 in the scenario, or --backend reference",
        )
    rows = request.max_k + 1
    if rows > MAX_QUERY_ROWS:
        raise UsageError(f"back end cupy: spec-{request.max_k}: at most spec-{MAX_QUERY_ROWS - 1} is supported")
    if request.max_batch * rows > MAX_ROWS:
        raise UsageError(
            f"back end cupy: batch {request.max_batch} at spec-{request.max_k} makes {request.max_batch * rows} rows "
            f"per step, at most {MAX_ROWS} are supported",
            hint=f"a batch of {MAX_ROWS // rows}, or fewer drafts",
        )
    if request.sampling is not None:
        check_settings(request.sampling)


def check_vocabulary(sampling: Sampling | None, target: TargetGeometry, where: Path) -> None:
    """Raise CheckpointError for more tokens than can be drawn from, UsageError for a bias of a token that is none."""
    if sampling is None:
        return
    if target.vocab > MOST_COLUMNS:
        raise CheckpointError(
            f"{where}: vocab_size = {target.vocab} is not supported by back end cupy with sampling: at most "
            f"{MOST_COLUMNS}",
            hint="use --backend reference, or leave sampling out of the scenario",
        )
    if beyond := [token for token, _ in sampling.logit_bias if token >= target.vocab]:
        raise UsageError(
            f"sampling.logit_bias: token {beyond[0]}", hint=f"the target has {target.vocab} tokens, from 0 on"
        )


def check_rows(
    request: OpenRequest, target: TargetGeometry, tree: DraftTree | None = None, plan: PartialPlan | None = None
) -> None:
    """Raise UsageError where a target with experts would get more rows than its kernels take. `tree`: what the longest
    role drafts; None: a chain. `plan`: how chains are verified in part.
    """
    chain = request.max_k + 1
    rows = Sizes(request.max_batch, request.max_positions, tree.rows if tree else chain, partial=plan).most_rows
    if target.experts is not None and request.max_batch * rows > MOST_ROWS:
        drafted = f"with a tree of {rows} rows" if tree else f"at spec-{request.max_k}"
        drafted, fewer = (f"{drafted} and {SPECPV}", f"a smaller {REFRESH}") if plan else (drafted, "fewer drafts")
        raise UsageError(
            f"back end cupy: batch {request.max_batch} {drafted} makes {request.max_batch * rows} rows "
            f"per step, at most {MOST_ROWS} are supported for a target with experts",
            hint=f"a batch of {MOST_ROWS // rows}, or {'a smaller tree' if tree else fewer}",
        )


def of_experts(experts: ExpertGeometry | None) -> dict[str, tuple[object, bool, str]]:
    """Key → its value, whether that is supported, and what would be."""
    if experts is None:
        return {}
    places = min(MOST_PLACES, experts.count)
    return {
        "num_local_experts": (experts.count, experts.count <= MOST_EXPERTS, f"at most {MOST_EXPERTS}"),
        "num_experts_per_tok": (experts.per_token, experts.per_token <= places, f"at most {places}"),
        "quantization_config": ("none", experts.mxfp4, "experts in MXFP4 are needed"),
    }


def check_geometry(geometry: TargetGeometry | DraftGeometry, where: Path) -> None:
    """Raise CheckpointError for sizes that no kernel is made for."""
    g = geometry
    wrong = {
        **of_experts(g.experts if isinstance(g, TargetGeometry) else None),
        "head_dim": (g.head_dim, g.head_dim in HEAD_DIMS, "64 or 128"),
        "num_key_value_heads": (
            g.kv_heads,
            g.heads % g.kv_heads == 0 and g.heads // g.kv_heads <= MAX_GROUP,
            f"each must serve as many, 1 to {MAX_GROUP}, of the {g.heads} query heads",
        ),
        "hidden_size": (g.hidden, g.hidden % 64 == 0, "a multiple of 64"),
        "intermediate_size": (g.intermediate, g.intermediate % 32 == 0, "a multiple of 32"),
    }
    for key, (value, fine, right) in wrong.items():
        if not fine:
            raise CheckpointError(
                f"{where}: {key} = {value} is not supported by back end cupy: {right}", hint="use --backend reference"
            )


def check_window(draft: DraftGeometry, where: Path) -> None:
    """Raise CheckpointError for an attention window that is longer than the positions that the draft knows."""
    if draft.window is not None and draft.window > draft.max_positions:
        raise CheckpointError(
            f"{where}: sliding_window = {draft.window} is larger than the draft's cache: max_position_embeddings = "
            f"{draft.max_positions}",
            hint="a window of at most so many positions",
        )


def plan(
    target: TargetGeometry, draft: DraftGeometry | None, sizes: Sizes, *, fused: bool = True, packed_rows: int = 0
) -> Mapping[str, int]:
    """Purpose → bytes, of everything beside the weights. `fused`, `packed_rows`: see `PrefillMode`."""
    buffers = Buffers.allocate(target, draft, sizes, "meta")
    pages = sum(bytes_of(pages) for pages in buffers.pages)
    if target.experts is None:
        prefill = workspace_bytes(target, draft, sizes.positions, fused=fused)
    else:
        prefill = expert_workspace_bytes(
            target, draft, sizes.positions, sizes.slots, fused=fused, packed_rows=packed_rows
        )
    return {"key/value cache": pages, "buffers of a step": bytes_of(buffers) - pages, "prefill workspace": prefill}


def require(plan: Mapping[str, int], sizes: Sizes, device: torch.device) -> None:
    """Print the plan, weights included; raise EnvironmentRefused, with its numbers, where `device` has less free.

    Called before a weight is read. Packing takes one matrix of all experts of a layer twice, less than a prefill does.
    """
    free, needed = free_bytes(device), sum(plan.values())
    parts = ", ".join(f"{name} {in_gb(size)}" for name, size in plan.items())
    print(f"memory plan: {parts}; {in_gb(free)} free", flush=True)
    if needed > free:
        raise EnvironmentRefused(
            f"{sizes.slots} slots of {sizes.positions} positions need {in_gb(needed)} ({parts}), "
            f"but {in_gb(free)} are free on {device}",
            hint="a smaller batch, a shorter context, a narrower cache (-o kv=fp8), or more GPUs (-o tp=2)",
        )


def in_gb(size: int) -> str:
    return f"{size / 1e9:.2f} GB"
