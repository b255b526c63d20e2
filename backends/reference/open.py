"""Load a pair into a reference engine, after checking that it can hold what the plan asks."""

from __future__ import annotations

import torch
from specgate.backends.eagle3.pair import load_draft, load_target

from specgate.api import OpenRequest
from specgate.backends.reference.engine import ReferenceEngine
from specgate.errors import BackendError, EnvironmentRefused, UsageError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def open_engine(request: OpenRequest) -> ReferenceEngine:
    """Raises CheckpointError for a bad pair, UsageError for a context it does not allow, BackendError for a missing
    draft.
    """
    device = pick_device(request.options.get("device", "auto"))
    dtype = DTYPES[request.dtype]
    target = load_target(request.pair.target, dtype, device, request.pair.rope)
    if request.max_positions > target.geometry.max_positions:
        raise UsageError(
            f"{request.pair.target}: max_position_embeddings = {target.geometry.max_positions}, but the plan needs "
            f"{request.max_positions} positions",
            hint="choose a shorter context, or give the scenario a rope scaling whose factor covers it",
        )
    draft = None
    if request.max_k:
        if request.pair.draft is None:
            raise BackendError(f"pair {request.pair.name!r} has no draft, but spec-{request.max_k} was asked for")
        draft = load_draft(request.pair.draft, target.geometry, dtype, device)
    return ReferenceEngine(
        target, draft, max_batch=request.max_batch, max_positions=request.max_positions, device=device
    )


def pick_device(asked: str) -> str:
    """`auto`, `cpu` or `cuda`. Raises EnvironmentRefused where CUDA is asked for and absent."""
    if asked == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if asked not in ("cpu", "cuda"):
        raise UsageError(f"option device = {asked!r}", hint="the reference engine knows auto, cpu, cuda")
    if asked == "cuda" and not torch.cuda.is_available():
        raise EnvironmentRefused("option device = 'cuda', but torch sees no CUDA GPU here")
    return asked
