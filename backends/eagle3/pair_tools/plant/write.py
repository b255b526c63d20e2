"""Write a planted pair as two Hugging Face folders: configs only, or with weights in safetensors shards."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from specgate.backends.eagle3.lib.hf_write import draft_config, target_config, write_config
from specgate.backends.eagle3.lib.planted.recipe import Recipe
from specgate.backends.eagle3.lib.planted.source import planted_draft, planted_target
from specgate.backends.eagle3.pair_tools.plant.geometries import PairGeometry
from specgate.backends.eagle3.pair_tools.shards import lazy_tensors, write_shards
from specgate.checkpoints.geometry import TargetGeometry
from specgate.checkpoints.hf.draft import trained_for_keys
from specgate.checkpoints.hf_keys import PLANTED, read_config
from specgate.checkpoints.planted import digest

DTYPE: Final = "bfloat16"
"""The dtype of a planted pair's weights, in files and when generated."""


def write_target(folder: Path, g: TargetGeometry, recipe: Recipe, notes: Mapping[str, object], written: bool) -> None:
    """Write the target. `notes` are added to the config section that says how the pair was planted."""
    save(folder, target_config(g, DTYPE), recipe, notes, written)
    if written:
        write_shards(folder, lazy_tensors(planted_target(read_config(folder), g)))


def write_draft(
    folder: Path, pair: PairGeometry, recipe: Recipe, notes: Mapping[str, object], written: bool, target_sha256: str
) -> None:
    """Write the draft. Its weights are written only once, so that a second call can update the notes."""
    config = draft_config(pair.draft, pair.boundaries, DTYPE)
    config |= trained_for_keys(folder.parent.name, pair.target, target_sha256)
    save(folder, config, recipe, notes, written)
    if written and not any(folder.glob("*.safetensors")):
        write_shards(folder, lazy_tensors(planted_draft(read_config(folder), pair.target)))


def save(folder: Path, config: dict[str, object], recipe: Recipe, notes: Mapping[str, object], written: bool) -> None:
    """Write the config with the section on planting and its digest."""
    folder.mkdir(parents=True, exist_ok=True)
    section: dict[str, object] = {**recipe.keys(), "weights": "written" if written else "seed", **notes}
    config = {**config, PLANTED: section}
    section["sha256"] = digest(config)
    write_config(folder, config)
