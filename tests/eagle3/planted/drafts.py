"""Planted drafts in memory, without files."""

from __future__ import annotations

import torch

from specgate.eagle3.auxiliary_layers import AuxiliaryLayers
from specgate.eagle3.layout import draft_tensors
from specgate.eagle3.pair import DraftCheckpoint
from specgate.eagle3.planted.draft import PlantedDraft
from specgate.eagle3.planted.recipe import Recipe
from specgate.eagle3.planted.tables import tables
from specgate.pair_tools.plant.geometries import PairGeometry


def made_draft(recipe: Recipe, shape: PairGeometry, dtype: torch.dtype, device: str) -> DraftCheckpoint:
    """The draft of a planted pair, as it is loaded from a seed."""
    g = shape.draft
    planted = PlantedDraft(recipe, g, tables(recipe, g.vocab), torch.device(device))
    made = {name: planted.make(name, want.shape).to(dtype) for name, want in draft_tensors(g, False, False).items()}
    d2t = planted.make("d2t", (g.draft_vocab,))
    return DraftCheckpoint(g, made, d2t, AuxiliaryLayers(recipe.boundaries, "as planted"), "", ())
