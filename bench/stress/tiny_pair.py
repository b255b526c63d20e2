"""A planted pair whose blocks take milliseconds on a CPU, with an acceptance length near 2.5."""

from __future__ import annotations

from pathlib import Path

from specgate.backends.eagle3.lib.planted.recipe import Recipe
from specgate.backends.eagle3.pair_tools.plant.geometries import PairGeometry, dense, draft_of
from specgate.backends.eagle3.pair_tools.plant.write import write_draft, write_target
from specgate.contract import PairRef

TINY = "tiny"
"""Its name on the command line."""
RECIPE = Recipe("A", seed=3, draft_vocab=256, signal=1.0, boundaries=(0, 1, 2))
"""Accepted in part: every step has drafts to take and drafts to give back."""


def write_tiny_pair(folder: Path) -> PairRef:
    """Write its configs below `folder`; the weights are generated when they are loaded."""
    target = dense(2, 256, 256, heads=4, kv_heads=2, head_dim=64, vocab=512, positions=4096)
    pair = PairGeometry(target, draft_of(target, RECIPE.draft_vocab), (0, 1, 2), context=256, written=False)
    write_target(folder / "target", target, RECIPE, {}, written=False)
    write_draft(folder / "draft", pair, RECIPE, {}, False, target_sha256="")
    return PairRef(TINY, folder / "target", folder / "draft", "planted")
