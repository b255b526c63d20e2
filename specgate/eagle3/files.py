"""The files of a checkpoint folder, and the digest that names them. Needs no torch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from specgate.eagle3.hf_keys import read_json
from specgate.errors import CheckpointError

INDEX: Final = "model.safetensors.index.json"


def checkpoint_sha256(folder: Path, configs: Iterable[Path]) -> str:
    """SHA-256 over name and content of `configs` and of the weight files of `folder`, hexadecimal."""
    return files_sha256((*configs, *weight_files(folder)))


def files_sha256(files: Iterable[Path]) -> str:
    total = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            content = hashlib.file_digest(stream, "sha256").hexdigest()
        total.update(f"{file.name} {content}\n".encode())
    return total.hexdigest()


def weight_files(folder: Path) -> tuple[Path, ...]:
    """The files that hold the weights, in the order in which Hugging Face looks for them."""
    if (single := folder / "model.safetensors").is_file():
        return (single,)
    if (index := folder / INDEX).is_file():
        return shards(index)
    if (pickled := folder / "pytorch_model.bin").is_file():
        return (pickled,)
    raise CheckpointError(f"{folder}: no weights", hint=f"looked for model.safetensors, {INDEX} and pytorch_model.bin")


def shards(index: Path) -> tuple[Path, ...]:
    names = sorted({str(name) for name in read_json(index).part("weight_map").values.values()})
    files = tuple(index.parent / name for name in names)
    missing = [file.name for file in files if not file.is_file()]
    if missing or not files:
        raise CheckpointError(f"{index}: shards missing: {', '.join(missing) or 'weight_map lists none'}")
    return files
