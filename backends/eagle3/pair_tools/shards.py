"""Write safetensors shards. Their tensors are read, or generated, only when their shard is written."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from specgate.backends.eagle3.lib.checkpoint import DTYPE_NAMES, TensorSource
from specgate.backends.eagle3.lib.planted.source import PlantedTensors
from specgate.checkpoints.files import INDEX

SHARD_BYTES: Final = 2_000_000_000
DTYPES: Final[Mapping[str, torch.dtype]] = {name: dtype for dtype, name in DTYPE_NAMES.items()}


@dataclass(frozen=True, slots=True)
class LazyTensor:
    """A tensor's shape and dtype, and a function that gets it. `read` returns `shape` and `dtype`, on the CPU."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Callable[[], Tensor]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def to(self, dtype: torch.dtype) -> LazyTensor:
        """The same tensor, converted to `dtype` when it is read."""
        return LazyTensor(self.shape, dtype, lambda: self.read().to(dtype))


def lazy_tensors(source: TensorSource, names: Iterable[str] | None = None) -> dict[str, LazyTensor]:
    """The tensors `names` of a checkpoint, or all of them, by name."""
    entries = {name: source.entries[name] for name in names or source.entries}
    return {n: LazyTensor(e.shape, DTYPES[e.dtype], partial(read_or_make, source, n)) for n, e in entries.items()}


def read_or_make(source: TensorSource, name: str) -> Tensor:
    """A tensor on the CPU. Planted weights are computed, on a GPU where there is one: each device gives the same."""
    if isinstance(source, PlantedTensors) and torch.cuda.is_available():
        return source.read(name, "cuda").cpu()
    return source.read(name)


def write_shards(folder: Path, tensors: Mapping[str, LazyTensor]) -> None:
    """Write `model.safetensors`, or shards of at most `SHARD_BYTES` with an index. One shard at a time is in memory."""
    from safetensors.torch import save_file

    shards = list(shards_of(tensors))
    names = [f"model-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)]
    if len(shards) == 1:
        names = ["model.safetensors"]
    for file, shard in zip(names, shards, strict=True):
        save_file({name: tensors[name].read().contiguous() for name in shard}, folder / file, metadata={"format": "pt"})
        (folder / file).chmod(0o644)  # safetensors gives it to its owner alone
    if len(shards) > 1:
        places = {name: file for file, shard in zip(names, shards, strict=True) for name in shard}
        content = {"metadata": {"total_size": sum(t.nbytes for t in tensors.values())}, "weight_map": places}
        (folder / INDEX).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def shards_of(tensors: Mapping[str, LazyTensor]) -> Iterator[list[str]]:
    """The names of the tensors in each shard."""
    shard, used = list[str](), 0
    for name, tensor in tensors.items():
        if shard and used + tensor.nbytes > SHARD_BYTES:
            yield shard
            shard, used = [], 0
        shard.append(name)
        used += tensor.nbytes
    yield shard
