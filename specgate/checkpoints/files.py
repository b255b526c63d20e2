"""The weight files of a checkpoint folder, and the hash that identifies its content. Needs no torch."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from os.path import isfile
from pathlib import Path
from threading import Event
from typing import Final

from specgate.checkpoints.hf_keys import read_json
from specgate.checkpoints.turbomind import converted_weights, raw_files
from specgate.errors import CheckpointError
from specgate.files.json_text import shown

INDEX: Final = "model.safetensors.index.json"
SHARD: Final = re.compile(r"model-\d+-of-\d+\.safetensors")
LONGEST_NAME: Final = 255
"""Characters of a file's name."""
SHOWN: Final = 20
"""Names in one message."""
PIECE: Final = 1 << 20
"""Bytes of a file that are read at a time to be hashed."""
HASHED_AT_A_TIME: Final = 8
"""Files that are read side by side to be hashed."""


class NotReadHere(CheckpointError):
    """Weights that are not on this machine, or in a format that only torch reads."""


def checkpoint_sha256(folder: Path, configs: Iterable[Path]) -> str:
    """SHA-256 (hexadecimal) over names and contents of `configs` and of the weight files of `folder`."""
    return files_sha256((*configs, *weight_files(folder)))


def files_sha256(files: Iterable[Path]) -> str:
    """SHA-256 (hexadecimal) over names and contents of `files`, in the order given."""
    total, named = hashlib.sha256(), tuple(files)
    for file, content in zip(named, contents_sha256(named), strict=True):
        total.update(f"{file.name} {content}\n".encode())
    return total.hexdigest()


def contents_sha256(files: Sequence[Path]) -> list[str]:
    """SHA-256 (hexadecimal) of the content of each of `files`, several of them at a time: one CPU reads a checkpoint
    of a hundred gigabytes for a minute.
    """
    stop = Event()
    with ThreadPoolExecutor(HASHED_AT_A_TIME) as pool:
        try:
            return list(pool.map(lambda file: content_sha256(file, stop), files))
        except BaseException:
            stop.set()  # else an interrupted command would first read what it has begun
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def content_sha256(file: Path, stop: Event) -> str:
    """SHA-256 (hexadecimal) of a file, or of a part of it once `stop` is set."""
    digest, piece = hashlib.sha256(), memoryview(bytearray(PIECE))
    with file.open("rb", buffering=0) as stream:
        while not stop.is_set() and (count := stream.readinto(piece)):
            digest.update(piece[:count])
    return digest.hexdigest()


def weight_files(folder: Path) -> tuple[Path, ...]:
    """The weight files of `folder`, looked for in the same order as Hugging Face does; all of TurboMind's, if it was
    converted for that.

    Raises CheckpointError where there are none, or where shards of the index are missing.
    """
    if (converted := converted_weights(folder)) is not None:
        return raw_files(converted)
    if (single := folder / "model.safetensors").is_file():
        return (single,)
    if (index := folder / INDEX).is_file():
        return shards(index)
    if (pickled := folder / "pytorch_model.bin").is_file():
        return (pickled,)
    there = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    hint = f"model.safetensors, {INDEX} or pytorch_model.bin is needed; there is {listed(there) or 'nothing'}"
    raise NotReadHere(f"{folder}: no weights", hint=hint)


def shards(index: Path) -> tuple[Path, ...]:
    """The files that the index lists, sorted by name."""
    named = read_json(index).part("weight_map").values
    for tensor, name in named.items():
        if not isinstance(name, str) or not name or Path(name).name != name or len(name) > LONGEST_NAME:
            where = f"{index}: weight_map.{shown(tensor)}"
            raise CheckpointError(f"{where} = {shown(name)}", hint="the name of a file beside the index is needed")
    files = tuple(index.parent / name for name in sorted({str(name) for name in named.values()}))
    missing = [file.name for file in files if not isfile(file)]
    if missing or not files:
        raise CheckpointError(
            f"{index}: shards missing: {listed(missing) or 'weight_map lists none'}", hint="fetch the folder again"
        )
    beside = sorted(path.name for path in index.parent.iterdir() if SHARD.fullmatch(path.name) and path not in files)
    if beside:
        raise CheckpointError(
            f"{index}: weight_map does not list {listed(beside)}", hint="fetch the index again, or remove them"
        )
    return files


def listed(names: Sequence[str]) -> str:
    """The first of `names`, printable, and how many more there are."""
    shortened = ", ".join(name if name.isprintable() and len(name) <= 120 else shown(name) for name in names[:SHOWN])
    return shortened + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
