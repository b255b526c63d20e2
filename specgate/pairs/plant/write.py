"""A planted pair as two Hugging Face folders: configs alone, or with weights in safetensors shards."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from specgate.backends.eagle3.checkpoint import Entry, TensorSource
from specgate.backends.eagle3.files import INDEX
from specgate.backends.eagle3.geometry import TargetGeometry
from specgate.backends.eagle3.hf_draft import trained_for_keys
from specgate.backends.eagle3.hf_keys import PLANTED, read_config
from specgate.backends.eagle3.hf_write import draft_config, target_config, write_config
from specgate.backends.eagle3.planted.recipe import Recipe, digest
from specgate.backends.eagle3.planted.source import planted_draft, planted_target
from specgate.pairs.plant.geometries import PairGeometry

SHARD_BYTES: Final = 2_000_000_000
DTYPE: Final = "bfloat16"
"""What the weights of a planted pair are, in a file or made anew."""


def write_target(folder: Path, g: TargetGeometry, recipe: Recipe, notes: Mapping[str, object], written: bool) -> None:
    """`notes` go into the section that says how the pair was planted."""
    save(folder, target_config(g, DTYPE), recipe, notes, written)
    if written:
        write_shards(folder, planted_target(read_config(folder), g))


def write_draft(
    folder: Path, pair: PairGeometry, recipe: Recipe, notes: Mapping[str, object], written: bool, target_sha256: str
) -> None:
    """The draft; its weights are made once, so that its notes can be rewritten without them."""
    config = draft_config(pair.draft, pair.boundaries, DTYPE)
    config |= trained_for_keys(folder.parent.name, pair.target, target_sha256)
    save(folder, config, recipe, notes, written)
    if written and not any(folder.glob("*.safetensors")):
        write_shards(folder, planted_draft(read_config(folder), pair.target))


def save(folder: Path, config: dict[str, object], recipe: Recipe, notes: Mapping[str, object], written: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    section: dict[str, object] = {**recipe.keys(), "weights": "written" if written else "seed", **notes}
    config = {**config, PLANTED: section}
    section["sha256"] = digest(config)
    write_config(folder, config)


def write_shards(folder: Path, source: TensorSource) -> None:
    """`model.safetensors`, or shards of at most `SHARD_BYTES` with their index; one shard is in memory at a time."""
    from safetensors.torch import save_file

    shards = list(shards_of(source.entries))
    names = [f"model-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)]
    if len(shards) == 1:
        names = ["model.safetensors"]
    for file, shard in zip(names, shards, strict=True):
        save_file({name: source.read(name).contiguous() for name in shard}, folder / file, metadata={"format": "pt"})
    if len(shards) > 1:
        places = {name: file for file, shard in zip(names, shards, strict=True) for name in shard}
        content = {"metadata": {"total_size": sum(map(size_of, source.entries.values()))}, "weight_map": places}
        (folder / INDEX).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def shards_of(entries: Mapping[str, Entry]) -> Iterator[list[str]]:
    shard, used = list[str](), 0
    for name, entry in entries.items():
        if shard and used + size_of(entry) > SHARD_BYTES:
            yield shard
            shard, used = [], 0
        shard.append(name)
        used += size_of(entry)
    yield shard


def size_of(entry: Entry) -> int:
    """Bytes of a tensor."""
    width = {"BF16": 2, "I64": 8, "BOOL": 1}[entry.dtype]
    for size in entry.shape:
        width *= size
    return width
