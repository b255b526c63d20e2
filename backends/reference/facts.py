"""What a loaded reference engine is, for the fingerprint and the report."""

from __future__ import annotations

import torch

from specgate.backends.eagle3.geometry import DraftGeometry, RopeSpec
from specgate.backends.eagle3.pair import DraftCheckpoint, TargetCheckpoint
from specgate.core import EngineFacts


def engine_facts(
    target: TargetCheckpoint, draft: DraftCheckpoint | None, dtype: torch.dtype, device: str
) -> EngineFacts:
    geometry = target.geometry
    details: dict[str, str | int | float] = {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "target layers x hidden": f"{geometry.layers} x {geometry.hidden}",
        "target rope": describe_rope(geometry.rope),
    }
    if draft is not None:
        details |= draft_details(draft.geometry)
    return EngineFacts(
        backend="reference",
        device=torch.cuda.get_device_name() if device == "cuda" else device,
        dtype=str(dtype).removeprefix("torch."),
        vocab=geometry.vocab,
        max_positions=geometry.max_positions,
        eos_token_ids=geometry.eos_token_ids,
        target_sha256=target.sha256,
        draft_sha256=draft.sha256 if draft else None,
        capture_rule=draft.capture.rule if draft else None,
        has_draft=draft is not None,
        details=details,
        warnings=draft.warnings if draft else (),
    )


def draft_details(geometry: DraftGeometry) -> dict[str, str | int | float]:
    return {
        "draft vocabulary": geometry.draft_vocab,
        "draft window": geometry.window or "none",
        "draft rope": describe_rope(geometry.rope),
    }


def describe_rope(spec: RopeSpec) -> str:
    scaled = "" if spec.kind == "default" else f", {spec.kind} x{spec.factor:g}"
    return f"base {spec.base:g}{scaled}"
