"""Load a pair into a reference engine, after checking that it can hold what the plan asks."""

from __future__ import annotations

import torch

from specgate.api import OpenRequest
from specgate.backends.eagle3.capture import parse_boundaries
from specgate.backends.eagle3.pair import load_draft, load_target
from specgate.backends.eagle3.spec_config import SpecConfig, check
from specgate.backends.reference.engine import ReferenceEngine
from specgate.errors import BackendError, EnvironmentRefused, UsageError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def open_engine(request: OpenRequest) -> ReferenceEngine:
    """Load `request.pair`. Options: `device` (auto, cpu, cuda), `capture` (boundaries such as 2,18,34).

    Raises UsageError for options, draft lengths and contexts that cannot be meant, CheckpointError for a bad pair,
    BackendError for a missing draft.
    """
    options = dict(request.options)
    device = pick_device(options.pop("device", "auto"))
    capture = parse_boundaries(text) if (text := options.pop("capture", None)) else None
    if options:
        raise UsageError(f"option {', '.join(options)}: not known", hint="the reference engine knows: device, capture")
    if request.max_k:
        check(SpecConfig.chain(request.max_k), f"spec-{request.max_k}")
        if request.pair.draft is None:
            raise BackendError(f"pair {request.pair.name!r} has no draft, but spec-{request.max_k} was asked for")
    dtype = DTYPES[request.dtype]
    target = load_target(request.pair.target, dtype, device, request.pair.rope)
    if request.max_positions > target.geometry.max_positions:
        raise UsageError(
            f"{target.config_file}: max_position_embeddings = {target.geometry.max_positions}, but the plan needs "
            f"{request.max_positions} positions",
            hint="choose a shorter context, or give the scenario a rope scaling whose factor covers it",
        )
    draft = None
    if request.max_k and request.pair.draft is not None:
        draft = load_draft(request.pair.draft, target.geometry, dtype, device, capture, target.sha256)
        check(SpecConfig.chain(request.max_k), str(request.pair.draft), draft=draft.geometry)
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
