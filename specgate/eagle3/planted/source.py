"""Planted weights as a `TensorSource`, in place of weight files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from specgate.eagle3.checkpoint import Entry, Wanted
from specgate.eagle3.geometry import TargetGeometry
from specgate.eagle3.hf.draft import draft_geometry
from specgate.eagle3.hf.target import require_dense
from specgate.eagle3.hf_keys import PLANTED, Keys
from specgate.eagle3.layout import draft_tensors, target_tensors
from specgate.eagle3.planted.draft import PlantedDraft
from specgate.eagle3.planted.recipe import recipe_of
from specgate.eagle3.planted.tables import tables
from specgate.eagle3.planted.target import PlantedTarget

Maker = Callable[[str, tuple[int, ...]], Tensor]
"""(tensor name, shape) → the tensor."""


class PlantedTensors:
    """The tensors of a folder with a config and no weights; `read` generates them on the device that is asked for."""

    def __init__(self, config: Keys, wanted: Mapping[str, Wanted], maker: Callable[[torch.device], Maker]) -> None:
        self.folder = config.file.parent
        self.entries = {n: Entry(config.file, w.shape, w.dtype or "BF16") for n, w in wanted.items()}
        self._maker = maker
        self._makers: dict[torch.device, Maker] = {}

    def read(self, name: str, device: torch.device | str = "cpu") -> Tensor:
        place = torch.device(device)
        if place not in self._makers:
            self._makers[place] = self._maker(place)
        return self._makers[place](name, self.entries[name].shape)

    def sha256(self, *configs: Path) -> str:
        """SHA-256 (hexadecimal) over names and contents of `configs`, which determine every bit of the weights."""
        total = hashlib.sha256()
        for file in configs:
            total.update(f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
        return total.hexdigest()


def planted_target(config: Keys, geometry: TargetGeometry) -> PlantedTensors:
    require_dense(geometry, config.file, "a seed")
    recipe = recipe_of(config.part(PLANTED))
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
