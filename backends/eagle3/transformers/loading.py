"""A target as `AutoModelForCausalLM` loads it: from this machine, with its own code, and with nothing missing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers

from specgate.backends.eagle3.lib.hf_write import rope_keys
from specgate.backends.eagle3.lib.memory import refusing_overflow
from specgate.backends.eagle3.transformers.options import Attention
from specgate.checkpoints.hf.target import target_geometry
from specgate.checkpoints.hf_keys import read_config
from specgate.errors import CheckpointError, SpecgateError

SHOWN = 5
"""Names of tensors in one message."""
LONGEST = 300
"""Characters of a message of transformers."""


def model_config(folder: Path, rope: Mapping[str, float | str] | None) -> Any:
    """The model's config, of transformers' class. `rope` replaces the RoPE scaling, as `eagle3.pair.load_target` says.

    Raises CheckpointError for a config that transformers does not take; with `rope`, for one that specgate cannot read.
    """
    with refusals(folder):
        if rope is None:
            return transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        config = read_config(folder)
        geometry = target_geometry(config, rope)
        values = {k: v for k, v in config.values.items() if k not in ("rope_scaling", "rope_parameters", "rope_theta")}
        values |= {**rope_keys(geometry.rope), "max_position_embeddings": geometry.max_positions}
        return transformers.AutoConfig.for_model(**json.loads(json.dumps(values)))


def load_model(
    folder: Path, config: Any, dtype: torch.dtype, device: str, attention: Attention | None
) -> tuple[Any, tuple[str, ...]]:
    """(the model, on `device` and ready to decode; warnings about its checkpoint).

    transformers makes up random weights for what a checkpoint lacks. Here that is refused.

    Raises CheckpointError for a checkpoint that does not fit its config, or that transformers cannot load.
    EnvironmentRefused: it does not fit into memory.
    """
    transformers.utils.logging.disable_progress_bar()
    with refusing_overflow(f"{folder}: weights", hint="a smaller target or a device with more memory is needed"):
        with refusals(folder):
            model, info = transformers.AutoModelForCausalLM.from_pretrained(
                folder,
                config=config,
                dtype=dtype,
                attn_implementation=attention,
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
        for kind in ("missing_keys", "mismatched_keys"):
            if names := sorted(map(str, info.get(kind) or ())):
                raise CheckpointError(
                    f"{folder}: {kind.partition('_')[0]} tensors: {listed(names)}",
                    hint="config and weights must be of one model: transformers would make up random ones",
                )
        return model.to(device).eval(), left_over(folder, info)


def left_over(folder: Path, info: Mapping[str, Any]) -> tuple[str, ...]:
    names = sorted(map(str, info.get("unexpected_keys") or ()))
    return (f"{folder.name}: transformers leaves tensors unused: {listed(names)}",) if names else ()


def listed(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


@contextmanager
def refusals(folder: Path) -> Iterator[None]:
    """Turn whatever transformers raises over a checkpoint into CheckpointError; exhausted memory passes."""
    try:
        yield
    except (SpecgateError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:LONGEST] or type(error).__name__
        raise CheckpointError(
            f"{folder}: transformers {transformers.__version__} cannot load it: {reason}",
            hint="a causal language model of an architecture that this version has, without code of its own",
        ) from error
