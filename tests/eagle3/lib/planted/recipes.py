"""Planted pairs for tests: the tiny geometry without calibration, in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor

from specgate.backends.eagle3.lib.layout import target_tensors
from specgate.backends.eagle3.lib.planted.draft import PlantedDraft
from specgate.backends.eagle3.lib.planted.recipe import Recipe
from specgate.backends.eagle3.lib.planted.tables import tables
from specgate.backends.eagle3.lib.planted.target import PlantedTarget
from specgate.backends.eagle3.pair_tools.plant.geometries import tiny
from specgate.checkpoints.geometry import DraftGeometry, TargetGeometry
from specgate.checkpoints.heads.tensors import draft_tensors

RECIPE_A = Recipe("A", seed=1, draft_vocab=512, signal=0.75, boundaries=(1, 3, 5))
RECIPE_EXPERTS = Recipe("A", seed=1, draft_vocab=512, signal=0.8, boundaries=(1, 2, 4), expert_overlap=0.5)
RECIPE_B = Recipe("B", seed=1, draft_vocab=512, signal=1.0, boundaries=(1, 3, 5))


def made_target(recipe: Recipe, device: str = "cpu", geometry: TargetGeometry | None = None) -> dict[str, Tensor]:
    g = geometry or tiny().target
    target = PlantedTarget(recipe, g, tables(recipe, g.vocab), torch.device(device))
    return {name: target.make(name, want.shape) for name, want in target_tensors(g).items()}


def made_draft(recipe: Recipe, device: str = "cpu", geometry: DraftGeometry | None = None) -> dict[str, Tensor]:
    g = geometry or tiny().draft
    draft = PlantedDraft(recipe, g, tables(recipe, g.vocab), torch.device(device))
    return {name: draft.make(name, want.shape) for name, want in draft_tensors(g, True, True).items()}


def digest(tensors: Mapping[str, Tensor]) -> str:
    total = hashlib.sha256()
    for name, tensor in tensors.items():
        total.update(name.encode() + tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()
