"""Checkpoints compared by content: the weights and the config of two folders or files on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from os.path import expanduser, isdir, isfile, samefile
from pathlib import Path
from typing import Final

from specgate.checkpoints.arrays import StoredArray, arrays_of_folder
from specgate.checkpoints.files import contents_sha256, weight_files
from specgate.checkpoints.hf_keys import read_config
from specgate.errors import CheckpointError

PIECE: Final = 1 << 24
"""Bytes that are compared at a time."""
INCIDENTAL: Final = frozenset({"_name_or_path", "transformers_version"})
"""Keys of a config that change nothing."""


def other_content(first: str, second: str) -> str | None:
    """The first thing in which two checkpoints differ; "" if nothing does; None where one of them is not on this
    machine, or cannot be read.
    """
    a, b = Path(expanduser(first)), Path(expanduser(second))
    try:
        if not (a.exists() and b.exists()):
            return None
        if samefile(a, b):
            return ""
        if isfile(a) and isfile(b):
            same = a.stat().st_size == b.stat().st_size and len(set(contents_sha256((a, b)))) == 1
            return "" if same else "the files have other contents"
        if not (isdir(a) and isdir(b)):
            return None
        return next(differences(a, b), "")
    except (CheckpointError, OSError):
        return None


def differences(a: Path, b: Path) -> Iterator[str]:
    """Sentences about the configs and weights of two folders. Raises CheckpointError where one cannot be read."""
    ours, theirs = (read_config(folder).values for folder in (a, b))
    keys = {key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key)} - INCIDENTAL
    weights = next(other_weights(a, b), "")
    if weights:
        yield weights
    if keys:
        yield f"config.json differs in {', '.join(sorted(keys)[:5])}"


def other_weights(a: Path, b: Path) -> Iterator[str]:
    """Sentences about weights that differ: of tensors, so that the number of files does not matter."""
    files = weight_files(a), weight_files(b)
    if any(file.suffix == ".bin" for file in (*files[0], *files[1])):
        if sorted(contents_sha256(files[0])) != sorted(contents_sha256(files[1])):
            yield "the weight files have other contents"
        return
    ours, theirs = arrays_of_folder(a), arrays_of_folder(b)
    yield from other_tensors(ours, theirs)


def other_tensors(ours: Mapping[str, StoredArray], theirs: Mapping[str, StoredArray]) -> Iterator[str]:
    if alone := sorted(ours.keys() ^ theirs.keys()):
        yield f"the weights of one alone have {alone[0]}"
    for name in sorted(ours.keys() & theirs.keys()):
        a, b = ours[name], theirs[name]
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            yield f"{name} is {a.dtype} {list(a.shape)} in one and {b.dtype} {list(b.shape)} in the other"
    for name in sorted(ours.keys() & theirs.keys()):
        if not same_bytes(ours[name], theirs[name]):
            yield f"the weights differ, in {name} first"


def same_bytes(a: StoredArray, b: StoredArray) -> bool:
    with a.file.open("rb") as first, b.file.open("rb") as second:
        first.seek(a.begin)
        second.seek(b.begin)
        left = a.nbytes
        while left:
            size = min(left, PIECE)
            if first.read(size) != second.read(size):
                return False
            left -= size
    return True
