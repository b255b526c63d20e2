"""Add the config of a draft on this machine to an engine's speculative config."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from os.path import isfile
from pathlib import Path
from typing import Final

from specgate.checkpoints.auxiliary_layers import AuxiliaryLayers, nested_ids, no_ids, resolve_boundaries, top_level_ids
from specgate.checkpoints.hf.draft import DraftKeys, window_of
from specgate.checkpoints.hf_keys import Keys
from specgate.checkpoints.spec_config.formats.collect_terms import Terms
from specgate.checkpoints.spec_config.terms import Said
from specgate.checkpoints.turbomind import is_draft, read_either
from specgate.errors import CheckpointError

READINGS: Final[Mapping[str, Callable[[Keys, int], AuxiliaryLayers]]] = {
    "top-level ids, as boundaries": top_level_ids,
    "nested ids, as outputs of layers": nested_ids,
    "no ids: 2, n // 2, n - 3": no_ids,
    "either key, refused where they differ": resolve_boundaries,
}
"""How an engine reads the auxiliary hidden-state layers of a draft's config → what it makes of one."""
BOUNDARIES, OUTPUTS, NO_IDS, EITHER = READINGS
AS_THE_DRAFT_SAYS: Final = "as the draft's config says"
NOT_APPLIED: Final = "not applied"


def add_draft(terms: Terms, draft: str | None, target: str | None, reading: str | None) -> tuple[int, ...] | None:
    """Replace in `terms` what the files on this machine settle; returns the boundaries that the engine feeds the draft.

    `reading`: one of `READINGS`; None where the engine's is not known. A draft that is not here, or whose config cannot
    be read, adds nothing.
    """
    config = config_of(draft)
    if config is None:
        return None
    try:
        keys = DraftKeys.of(config)
        window, hidden = window_of(keys.layer), keys.layer.optional_count("hidden_size")
    except CheckpointError:
        return None
    if hidden is not None:
        terms.setdefault("draft_hidden", Said(hidden, "fixed"))
    window_term = terms.get("window")
    if window_term is not None and window_term.value == AS_THE_DRAFT_SAYS:
        terms["window"] = Said(window, window_term.how)
    elif window_term is not None and window is None and window_term.value == NOT_APPLIED:
        terms["window"] = Said(None, window_term.how)  # there is none to apply
    return boundaries_of(config, target, reading)


def resolve_auto(terms: Terms, target: str | None) -> None:
    """Replace `auto` as dtype of the target or of its cache by what its config on this machine says."""
    config = config_of(target)
    if config is None:
        return
    dtype = config.values.get("torch_dtype") or config.values.get("dtype")
    if dtype in ("bfloat16", "float16") and "dtype" in terms and terms["dtype"].value == "auto":
        terms["dtype"] = replace(terms["dtype"], value=dtype)
    scheme = config.values.get("quantization_config")
    plain = scheme is None and not (Path(str(target)) / "hf_quant_config.json").is_file()
    if plain and "kv_dtype" in terms and terms["kv_dtype"].value == "auto" and terms["dtype"].value != "auto":
        terms["kv_dtype"] = replace(terms["kv_dtype"], value=terms["dtype"].value)


def boundaries_of(draft: Keys, target: str | None, reading: str | None) -> tuple[int, ...] | None:
    layers = layers_of(target)
    if reading is None or layers is None:
        return None
    try:
        return READINGS[reading](draft, layers).boundaries
    except CheckpointError:
        return None


def config_of(folder: str | None) -> Keys | None:
    """The config of a checkpoint that lies on this machine."""
    if not folder or not (isfile(f"{folder}/config.json") or is_draft(Path(folder))):
        return None
    try:
        return read_either(Path(folder))
    except CheckpointError:
        return None


def layers_of(target: str | None) -> int | None:
    config = config_of(target)
    if config is None:
        return None
    try:
        return config.optional_count("num_hidden_layers") or config.part("text_config").optional_count(
            "num_hidden_layers"
        )
    except CheckpointError:
        return None
