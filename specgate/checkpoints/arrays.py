"""Small arrays of a checkpoint, and the table from draft tokens to target tokens (d2t).

`d2t`, int64 [W], holds *offsets*: the target id of draft token i is i + d2t[i].
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from specgate.checkpoints.files import weight_files
from specgate.errors import CheckpointError
from specgate.files.panics import refusing

STORED: Final[Mapping[str, str]] = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1", "BOOL": "|b1",
}  # fmt: skip
"""Type in a safetensors file → numpy's name of what is stored. numpy has no bfloat16: its bits are read."""
FLOATS: Final = frozenset({"F64", "F32", "F16", "BF16"})


@dataclass(frozen=True, slots=True)
class StoredArray:
    """One tensor of a safetensors file. `dtype` is spelled as in the file, e.g. BF16. `begin`: byte of its first
    element. `nbytes`: bytes of all.
    """

    file: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    nbytes: int = 0

    @property
    def is_float(self) -> bool:
        """True if the tensor holds floats of 16 to 64 bits."""
        return self.dtype in FLOATS

    def read(self) -> NDArray[Any]:
        """The tensor, shape `shape`; bfloat16 is widened to float32.

        Raises CheckpointError for a type that numpy has no equal of.
        """
        if self.dtype not in STORED:
            raise CheckpointError(f"{self.file}: a tensor of type {self.dtype}", hint=f"one of {', '.join(STORED)}")
        count = int(np.prod(self.shape, dtype=np.int64))
        stored = np.fromfile(self.file, STORED[self.dtype], count, offset=self.begin).reshape(self.shape)
        if self.dtype == "BF16":
            return (stored.astype(np.uint32) << 16).view(np.float32)
        return stored


def arrays_of_file(file: Path) -> dict[str, StoredArray]:
    """Name → tensor of one safetensors file. Raises CheckpointError for a damaged one."""
    from safetensors import safe_open

    def not_whole(why: str) -> CheckpointError:
        return CheckpointError(
            f"{file}: not a whole safetensors file ({why})", hint="truncated or damaged: fetch it again"
        )

    with refusing(not_whole), safe_open(file, framework="np"):
        pass  # the library has checked that the header fits the file
    with file.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        header = json.loads(stream.read(size))
    return {
        name: StoredArray(file, entry["dtype"], tuple(entry["shape"]), 8 + size + begin, end - begin)
        for name, entry in header.items()
        if name != "__metadata__"
        for begin, end in (entry["data_offsets"],)
    }


def arrays_of_folder(folder: Path) -> dict[str, StoredArray]:
    """Name → tensor of a checkpoint folder. Raises CheckpointError for missing and damaged files, and for a
    `pytorch_model.bin`, which only torch reads.
    """
    arrays: dict[str, StoredArray] = {}
    for file in weight_files(folder):
        if file.suffix == ".bin":
            raise CheckpointError(f"{file}: only torch reads this format", hint="safetensors files are looked at")
        arrays.update(arrays_of_file(file))
    return arrays


Integers = NDArray[np.integer[Any]]
Mask = NDArray[np.bool_]

OFFSETS_HINT = "d2t must hold offsets, so that target id = i + d2t[i]; subtract arange(len(d2t)) from a table of ids"
SAME_SET_HINT = "both must describe the same set of target tokens"


def check_d2t(d2t: Integers, t2d: Mask | None, target_vocab: int, where: str) -> tuple[str, ...]:
    """Check `d2t` int64 [W] and, where there is one, the mask `t2d` bool [V] of the target tokens that the draft knows.

    Returns warnings. Raises CheckpointError for a map that is wrong; `where` names the file.
    """
    draft_vocab = len(d2t)
    ids = d2t + np.arange(draft_vocab)
    if looks_absolute(d2t, ids, t2d, target_vocab):
        raise CheckpointError(f"{where}: d2t looks like a table of absolute target ids", hint=OFFSETS_HINT)
    if outside := np.flatnonzero((ids < 0) | (ids >= target_vocab)).tolist():
        i = outside[0]
        raise CheckpointError(
            f"{where}: d2t[{i}] = {int(d2t[i])} gives target id {int(ids[i])}, outside the vocabulary of {target_vocab}"
            f" ({len(outside)} entries are)",
            hint=OFFSETS_HINT,
        )
    if (distinct := len(set(ids.tolist()))) < draft_vocab:
        raise CheckpointError(
            f"{where}: d2t maps {draft_vocab} draft tokens to {distinct} target tokens",
            hint="each target token may occur once",
        )
    if t2d is not None:
        check_t2d(t2d, ids, where)
    if (np.diff(ids) < 0).any():
        return (f"{where}: d2t is not in ascending order of target id, as trainers write it: permuted or damaged",)
    return ()


def looks_absolute(d2t: Integers, ids: Integers, t2d: Mask | None, target_vocab: int) -> bool:
    """True if `d2t` holds absolute target ids, although offsets are expected. `ids` [W] is its reading as offsets.

    That is only possible where `d2t` itself lists distinct target ids. A mask `t2d` then settles the question: the ids
    are absolute if it marks all of them. Both readings cannot fit, because their sums differ.

    Without a mask, `d2t` is taken for absolute where the reading as offsets leaves the vocabulary, or where `d2t` rises
    strictly. Strictly rising offsets would mean that no two neighbouring tokens are both in the draft vocabulary, which
    does not happen in a vocabulary chosen by frequency.
    """
    a_table = bool(((d2t >= 0) & (d2t < target_vocab)).all()) and len(set(d2t.tolist())) == len(d2t) > 1
    if not a_table:
        return False
    if t2d is not None:
        return bool(t2d[d2t].all())
    return int(ids.max()) >= target_vocab or bool((np.diff(d2t) > 0).all())


def check_t2d(t2d: Mask, ids: Integers, where: str) -> None:
    """Raise CheckpointError unless the mask `t2d` marks exactly the target `ids`."""
    if (marked := int(t2d.sum())) != len(ids):
        raise CheckpointError(f"{where}: t2d marks {marked} tokens, d2t maps {len(ids)}", hint=SAME_SET_HINT)
    if not t2d[ids].all():
        i = int(np.flatnonzero(~t2d[ids])[0])
        raise CheckpointError(
            f"{where}: d2t maps draft token {i} to {int(ids[i])}, which t2d does not mark", hint=SAME_SET_HINT
        )
