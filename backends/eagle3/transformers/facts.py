"""The facts of a loaded model, for the fingerprint and the report."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from specgate.backends.eagle3.lib.describe import draft_details
from specgate.backends.eagle3.lib.pair import DraftCheckpoint
from specgate.backends.eagle3.lib.traffic import pair_traffic
from specgate.backends.eagle3.reference.drafters import StandIn
from specgate.backends.eagle3.reference.facts import not_the_pairs
from specgate.backends.eagle3.transformers.options import Options
from specgate.checkpoints.geometry import DraftGeometry
from specgate.checkpoints.hf.any_target import AnyTarget
from specgate.checkpoints.hf.target import target_geometry
from specgate.checkpoints.hf_keys import read_config
from specgate.contract import EngineFacts, EngineIdentity, PairRef, Traffic
from specgate.contract.tape import Tape
from specgate.errors import CheckpointError


def engine_facts(
    model: Any,
    pair: PairRef,
    sizes: AnyTarget,
    options: Options,
    drafts: DraftCheckpoint | StandIn | None,
    tape: Tape | None,
    *,
    dtype: torch.dtype,
    device: str,
    max_positions: int,
    prefill_rows: int,
    target_sha256: str,
    warnings: tuple[str, ...],
) -> EngineFacts:
    """The facts. `tape` is the source of the accept counts where these are forced."""
    draft = drafts if isinstance(drafts, DraftCheckpoint) else None
    details: dict[str, str | int | float] = {
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "model": type(model).__name__,
        "prefill": f"at most {prefill_rows} rows a pass",
    }
    if draft is not None:
        details |= draft_details(draft.geometry)
    elif isinstance(drafts, str):
        details["drafter"] = drafts
    if tape is not None:
        details["tape of"] = tape.origin.get("run", "a run that it does not name")
    return EngineFacts(
        backend="transformers",
        device=torch.cuda.get_device_name() if device == "cuda" else device,
        dtype=name_of(dtype),
        vocab=sizes.vocab,
        max_positions=max_positions,
        eos_token_ids=sizes.eos_token_ids,
        target_sha256=target_sha256,
        draft_sha256=draft.sha256 if draft else None,
        capture_rule=draft.capture.rule if draft else None,
        has_draft=drafts is not None,
        details=details,
        acceptance="forced" if tape else "stand-in" if isinstance(drafts, str) else None,
        tape_sha256=tape.sha256 if tape else None,
        traffic=traffic_of(pair, draft.geometry if draft else None, dtype),
        engine_version=transformers.__version__,
        warnings=(*warnings, *(draft.warnings if draft else ()), *not_the_pairs(drafts, tape)),
        identity=identity_of(model, options, dtype),
    )


def identity_of(model: Any, options: Options, dtype: torch.dtype) -> EngineIdentity:
    """Return the version of transformers and the model's settings. It captures no CUDA graphs here."""
    config = model.config
    experts = getattr(config, "_experts_implementation", None) if has_experts(config) else None
    quantized = getattr(config, "quantization_config", None)
    method = quantized.get("quant_method") if isinstance(quantized, dict) else getattr(quantized, "quant_method", None)
    return EngineIdentity(
        engine="transformers",
        version=transformers.__version__,
        build=options.build,
        told_by="option" if options.build else None,
        settings={
            "attention": str(config._attn_implementation),
            "moe": str(experts or "none"),
            "cuda_graphs": "none",
            "dtype": name_of(dtype),
            "quantization": str(getattr(method, "value", method) or "none"),
            "kv_cache_dtype": name_of(dtype),
        },
    )


def has_experts(config: Any) -> bool:
    text = config.get_text_config(decoder=True)
    return any(getattr(text, key, None) for key in ("num_local_experts", "num_experts", "n_routed_experts"))


def traffic_of(pair: PairRef, draft: DraftGeometry | None, dtype: torch.dtype) -> Traffic | None:
    """Return the memory traffic of a pass, if the target is one that specgate's own engines know."""
    try:
        return pair_traffic(target_geometry(read_config(pair.target), pair.rope), draft, dtype)
    except CheckpointError:
        return None


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
