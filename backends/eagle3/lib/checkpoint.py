"""Strict reading of weight files.

Supported are `model.safetensors`, shards listed in `model.safetensors.index.json`, and `pytorch_model.bin`. The last is
read with torch's restricted loader for tensors, never with plain pickle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import torch
from torch import Tensor

from specgate.checkpoints.files import files_sha256, weight_files
from specgate.checkpoints.turbomind import converted_weights
from specgate.errors import CheckpointError
from specgate.files.panics import refusing

DTYPE_NAMES: Final[Mapping[torch.dtype, str]] = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor as its file's header describes it. `dtype` is spelled as in safetensors, e.g. BF16."""

    file: Path
    shape: tuple[int, ...]
    dtype: str


class TensorSource(Protocol):
    """The named tensors of one checkpoint, whether they are read from files or generated."""

    folder: Path
    entries: dict[str, Entry]

    def read(self, name: str, device: torch.device | str = "cpu") -> Tensor:
        """The tensor in its stored dtype, on `device`."""

    def read_part(self, name: str, axis: int, start: int, stop: int, device: torch.device | str = "cpu") -> Tensor:
        """Elements `start` … `stop` − 1 along `axis` of it, in memory of their own."""

    def sha256(self, *configs: Path) -> str:
        """SHA-256 (hexadecimal) of the whole content, including the files `configs`."""


class TensorFiles:
    """The tensors of one checkpoint folder, read on demand. Raises CheckpointError for missing and damaged files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = weight_files(folder)
        if converted_weights(folder) is not None:
            raise CheckpointError(
                f"{folder}: converted for TurboMind", hint="specgate's own engines read the Hugging Face folder"
            )
        self._pickled: dict[Path, dict[str, Tensor]] = {}
        self.entries: dict[str, Entry] = {}
        for file in self.files:
            for name, entry in self._header(file).items():
                if name in self.entries:
                    raise CheckpointError(f"{file}: tensor {name} is also in {self.entries[name].file.name}")
                self.entries[name] = entry

    def read(self, name: str, device: torch.device | str = "cpu") -> Tensor:
        """The tensor as stored. On the CPU it is memory-mapped where the file format allows it."""
        file = self.entries[name].file
        if file in self._pickled:
            return self._pickled[file][name].to(device)
        from safetensors import safe_open

        with refusing(lambda why: not_whole(file, why)), safe_open(file, framework="pt") as source:
            tensor: Tensor = source.get_tensor(name)
        return tensor.to(device)

    def read_part(self, name: str, axis: int, start: int, stop: int, device: torch.device | str = "cpu") -> Tensor:
        """No more of a safetensors file is read than is asked for."""
        file = self.entries[name].file
        if file in self._pickled:
            return own_part(self._pickled[file][name], axis, start, stop).to(device)
        from safetensors import safe_open

        with refusing(lambda why: not_whole(file, why)), safe_open(file, framework="pt") as source:
            part: Tensor = source.get_slice(name)[(*(slice(None),) * axis, slice(start, stop))]
        return part.contiguous().to(device)

    def sha256(self, *configs: Path) -> str:
        """SHA-256 (hexadecimal) over names and contents of `configs` and of every weight file."""
        return files_sha256((*configs, *self.files))

    def _header(self, file: Path) -> dict[str, Entry]:
        if file.suffix == ".bin":
            self._pickled[file] = tensors = load_bin(file)
            return {n: Entry(file, tuple(t.shape), DTYPE_NAMES.get(t.dtype, str(t.dtype))) for n, t in tensors.items()}
        from safetensors import safe_open

        with refusing(lambda why: not_whole(file, why)), safe_open(file, framework="pt") as source:
            slices = {name: source.get_slice(name) for name in source.keys()}  # noqa: SIM118 (not a mapping)
            return {name: Entry(file, tuple(s.get_shape()), s.get_dtype()) for name, s in slices.items()}


def own_part(tensor: Tensor, axis: int, start: int, stop: int) -> Tensor:
    """A copy of elements `start` … `stop` − 1 along `axis`, so that the whole tensor can be forgotten."""
    return tensor.narrow(axis, start, stop - start).clone(memory_format=torch.contiguous_format)


def not_whole(file: Path, why: str) -> CheckpointError:
    return CheckpointError(f"{file}: not a whole safetensors file ({why})", hint="truncated or damaged: fetch it again")


def check_finite(tensor: Tensor, name: str, folder: Path) -> Tensor:
    """`tensor` as it is. Raises CheckpointError where it holds NaN or infinity; the extremes of its values tell."""
    if tensor.numel() and not torch.stack(torch.aminmax(tensor)).isfinite().all():
        raise CheckpointError(
            f"{folder}: tensor {name} is not finite in {str(tensor.dtype).removeprefix('torch.')}",
            hint="it holds NaN or infinity, or overflows in this dtype: export the draft anew",
        )
    return tensor


def load_bin(file: Path) -> dict[str, Tensor]:
    """The tensors of a `torch.save` file. Raises CheckpointError for anything but a flat dictionary of tensors."""

    def refused(why: str) -> CheckpointError:
        return CheckpointError(
            f"{file}: not a whole torch file of tensors ({why})",
            hint="truncated, damaged, older than torch 1.6, or holding more than tensors: convert it to safetensors",
        )

    with refusing(refused):  # a damaged pickle can raise nearly anything
        content = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    if not isinstance(content, dict) or not all(isinstance(t, Tensor) for t in content.values()):
        raise CheckpointError(f"{file}: not a flat dictionary of tensors", hint="save the state dict alone")
    return {str(name): tensor for name, tensor in content.items()}
