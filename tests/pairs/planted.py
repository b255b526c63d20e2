"""A small pair of ordinary files whose draft is right in some of its cycles and wrong in others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from tokenizers import Tokenizer, models, pre_tokenizers

from specgate.backends.eagle3.lib.planted.recipe import Recipe
from specgate.backends.eagle3.pair_tools.plant.geometries import PairGeometry, dense, draft_of
from specgate.backends.eagle3.pair_tools.plant.write import write_draft, write_target

TARGET: Final = dense(4, 128, 256, heads=4, kv_heads=2, head_dim=32, vocab=512, positions=8192)
SHAPE: Final = PairGeometry(TARGET, draft_of(TARGET, 128), (1, 2, 3), context=256, written=True)
RECIPE: Final = Recipe("A", seed=1, draft_vocab=128, signal=3.0, boundaries=SHAPE.boundaries)


def write_planted_pair(folder: Path) -> tuple[Path, Path]:
    """Write target and draft below `folder`. Their weights are planted, and nothing says so. Their tokens are bytes."""
    write_target(folder / "target", TARGET, RECIPE, {}, written=True)
    write_draft(folder / "draft", SHAPE, RECIPE, {}, True, "0" * 64)
    for config in (folder / "target" / "config.json", folder / "draft" / "config.json"):
        stored = json.loads(config.read_text())
        config.write_text(json.dumps({key: value for key, value in stored.items() if key != "planted"}))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.save(str(folder / "target" / "tokenizer.json"))
    return folder / "target", folder / "draft"
