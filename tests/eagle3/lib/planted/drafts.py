"""Planted drafts in memory, without files."""

from __future__ import annotations

import torch

from specgate.backends.eagle3.lib.pair import DraftCheckpoint
from specgate.backends.eagle3.lib.planted.draft import PlantedDraft
from specgate.backends.eagle3.lib.planted.recipe import Recipe
from specgate.backends.eagle3.lib.planted.tables import tables
from specgate.backends.eagle3.pair_tools.plant.geometries import PairGeometry
from specgate.checkpoints.auxiliary_layers import AuxiliaryLayers
from specgate.checkpoints.heads.tensors import draft_tensors


def made_draft(recipe: Recipe, shape: PairGeometry, dtype: torch.dtype, device: str) -> DraftCheckpoint:
    """The draft of a planted pair, as it is loaded from a seed."""
    g = shape.draft
    planted = PlantedDraft(recipe, g, tables(recipe, g.vocab), torch.device(device))
    made = {name: planted.make(name, want.shape).to(dtype) for name, want in draft_tensors(g, False, False).items()}
    d2t = planted.make("d2t", (g.draft_vocab,))
    return DraftCheckpoint(g, made, d2t, AuxiliaryLayers(recipe.boundaries, "as planted"), "", ())
