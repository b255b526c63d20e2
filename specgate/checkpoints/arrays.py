"""Small arrays of a checkpoint, read without torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from specgate.checkpoints.files import NotReadHere, weight_files
from specgate.checkpoints.hf_keys import Keys
from specgate.checkpoints.turbomind import TARGET, check_target, draft_files, is_draft, weights_config
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


def check_converted(folder: Path, config: Keys) -> None:
    """Check the weights of a pair's folder that was converted for TurboMind. `config`: what `read_either` reads there.

    Raises CheckpointError for files that are missing, or of another size than the config says.
    """
    if is_draft(folder):
        arrays_of_folder(folder)
    else:
        check_target(folder, weights_config(folder / TARGET), config)


CONVERT: Final = (
    "to have it checked, convert it there: python -c 'import torch, safetensors.torch as s; "
    's.save_file(torch.load("pytorch_model.bin", weights_only=True), "model.safetensors")\''
)


def arrays_of_folder(folder: Path) -> dict[str, StoredArray]:
    """Name → tensor of a checkpoint folder; of a draft that was converted for TurboMind, name of the file → tensor.

    Raises CheckpointError for damaged files, NotReadHere where there is none, and for a `pytorch_model.bin`, which only
    torch reads.
    """
    if is_draft(folder):
        raw = draft_files(weights_config(folder))
        return {
            name: StoredArray(file, dtype, shape, 0, file.stat().st_size) for name, (file, dtype, shape) in raw.items()
        }
    arrays: dict[str, StoredArray] = {}
    for file in weight_files(folder):
        if file.suffix == ".bin":
            raise NotReadHere(f"{file}: only torch reads this format", hint=CONVERT)
        for name, array in arrays_of_file(file).items():
            if name in arrays:
                raise CheckpointError(f"{file}: tensor {name} is also in {arrays[name].file.name}")
            arrays[name] = array
    return arrays
