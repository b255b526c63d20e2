"""Planted weights as a `TensorSource`, in place of weight files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from specgate.backends.eagle3.lib.checkpoint import Entry, own_part
from specgate.backends.eagle3.lib.layout import target_tensors
from specgate.backends.eagle3.lib.planted.draft import PlantedDraft
from specgate.backends.eagle3.lib.planted.experts import routing_coordinates
from specgate.backends.eagle3.lib.planted.recipe import recipe_of
from specgate.backends.eagle3.lib.planted.tables import tables
from specgate.backends.eagle3.lib.planted.target import PlantedTarget
from specgate.checkpoints.geometry import TargetGeometry
from specgate.checkpoints.heads.tensors import Wanted, draft_tensors
from specgate.checkpoints.hf.draft import draft_geometry
from specgate.checkpoints.hf.target import target_geometry
from specgate.checkpoints.hf_keys import PLANTED, Keys

Maker = Callable[[str, tuple[int, ...]], Tensor]
"""(tensor name, shape) → the tensor."""


class PlantedTensors:
    """The tensors of a folder with a config and no weights; `read` generates them on the device that is asked for."""

    def __init__(self, config: Keys, expected: Mapping[str, Wanted], maker: Callable[[torch.device], Maker]) -> None:
        self.folder = config.file.parent
        self.entries = {n: Entry(config.file, w.shape, w.dtype or "BF16") for n, w in expected.items()}
        self._maker = maker
        self._makers: dict[torch.device, Maker] = {}

    def read(self, name: str, device: torch.device | str = "cpu") -> Tensor:
        place = torch.device(device)
        if place not in self._makers:
            self._makers[place] = self._maker(place)
        return self._makers[place](name, self.entries[name].shape)

    def read_part(self, name: str, axis: int, start: int, stop: int, device: torch.device | str = "cpu") -> Tensor:
        """It is made whole, on the device, and what is not asked for is forgotten at once."""
        return own_part(self.read(name, device), axis, start, stop)

    def sha256(self, *configs: Path) -> str:
        """SHA-256 (hexadecimal) over names and contents of `configs`, which determine every bit of the weights."""
        total = hashlib.sha256()
        for file in configs:
            total.update(f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
        return total.hexdigest()


def planted_target(config: Keys, geometry: TargetGeometry) -> PlantedTensors:
    """The target of `geometry`. Raises CheckpointError for experts that the recipe has no room for."""
    section = config.part(PLANTED)
    recipe = recipe_of(section)
    if geometry.head_norms and recipe.name != "A":
        raise section.wrong("recipe", "a target with norms of queries and keys needs recipe A")
    if geometry.experts:
        if recipe.name != "A":
            raise section.wrong("recipe", "a target with experts needs recipe A")
        if recipe.expert_overlap is None:
            raise section.wrong("expert_overlap", "a target with experts needs a share from 0 to 1")
        if not geometry.experts.mxfp4:
            raise config.wrong("quantization_config", "planted experts are in MXFP4: quant_method = mxfp4")
        if routing_coordinates(geometry.experts) >= geometry.hidden:
            raise config.wrong("num_local_experts", f"hidden_size = {geometry.hidden} has no room for so many")
        geometry = target_geometry(config)  # weights follow from the config's own RoPE, not from a scenario's
    integers = tables(recipe, geometry.vocab)
    return PlantedTensors(
        config, target_tensors(geometry), lambda device: PlantedTarget(recipe, geometry, integers, device).make
    )


def planted_draft(config: Keys, target: TargetGeometry) -> PlantedTensors:
    recipe = recipe_of(config.part(PLANTED))
    geometry, _ = draft_geometry(config, target, {"lm_head.weight"})
    integers = tables(recipe, geometry.vocab)
    return PlantedTensors(
        config,
        draft_tensors(geometry, True, True),
        lambda device: PlantedDraft(recipe, geometry, integers, device).make,
    )
