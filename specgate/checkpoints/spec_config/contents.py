"""Checkpoints compared by content: the weights and the config of two folders or files on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from os.path import expanduser, isdir, isfile, samefile
from pathlib import Path
from typing import Final

import numpy as np

from specgate.checkpoints.arrays import StoredArray, arrays_of_folder
from specgate.checkpoints.files import contents_sha256, weight_files
from specgate.checkpoints.heads.names import head_names
from specgate.checkpoints.turbomind import TENSORS, is_draft, read_either
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
    """Sentences about the configs and weights of two folders. Raises CheckpointError where one cannot be read, and
    configs tell no difference.
    """
    ours, theirs = (read_either(folder).values for folder in (a, b))
    named = ours.keys() | theirs.keys()
    if is_draft(a) != is_draft(b):  # a converted draft's config says less, and a Hugging Face one may leave to defaults
        named = ours.keys() & theirs.keys()
    keys = {key for key in named if ours.get(key) != theirs.get(key)} - INCIDENTAL
    configs = [f"their configs differ in {', '.join(sorted(keys)[:5])}"] if keys else []
    try:
        yield from list(other_weights(a, b))[:1]
    except (CheckpointError, OSError):
        if not configs:
            raise
    yield from configs


def other_weights(a: Path, b: Path) -> Iterator[str]:
    """Sentences about weights that differ: of tensors, so that the number of files does not matter."""
    files = weight_files(a), weight_files(b)
    if any(file.suffix == ".bin" for file in (*files[0], *files[1])):
        if sorted(contents_sha256(files[0])) != sorted(contents_sha256(files[1])):
            yield "the weight files have other contents"
        return
    ours, theirs = arrays_of_folder(a), arrays_of_folder(b)
    if is_draft(a) == is_draft(b):
        yield from other_tensors(ours, theirs)
    else:
        raw, head, folder = (ours, theirs, b) if is_draft(a) else (theirs, ours, a)
        yield from other_values(raw, {name: head[at] for name, at in head_names(head, folder).stored.items()})


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


def other_values(raw: Mapping[str, StoredArray], head: Mapping[str, StoredArray]) -> Iterator[str]:
    """Sentences about weights of a draft that was converted for TurboMind, against those of a head. Embedding and LM
    head of a converted draft are the target's.
    """
    for file, kind in TENSORS.items():
        if file not in raw or not kind.of:
            continue
        if kind.of not in head:
            yield f"the weights of one alone have {kind.of}"
            continue
        theirs = head[kind.of].read()
        if not np.array_equal(raw[file].read(), theirs.T if kind.turned else theirs):
            yield f"the weights differ, in {kind.of} first"


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
