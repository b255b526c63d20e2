"""From a `.cu` file and its constants to a function on the GPU.

Our headers are written into the text, because CuPy's disk cache does not look at files that are reached by `-I`: after
an edit to a header alone it would serve the old binary. `#line` keeps the compiler's messages true to the files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

FOLDER: Final = Path(__file__).parent
ENTRY: Final = re.compile(r'extern "C" __global__ (?:__launch_bounds__\([^)]*\) )?void (\w+)\(')
INCLUDE: Final = re.compile(r'#include "([\w.]+)"')
OPTIONS: Final = (
    "--std=c++17",
    # Every variant of a kernel must round alike: the compiler may not choose where a product and a sum are fused.
    "--fmad=false",
)
BESIDE_A_STEP: Final = frozenset({"read_memory"})
"""Kernel files that measure the device; no step launches them."""
ARGUMENT = Tensor | int | float | None


@dataclass(frozen=True, slots=True)
class Spec:
    """A kernel file, and the constants that it is compiled with."""

    stem: str
    constants: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, stem: str, constants: Mapping[str, int | float]) -> Spec:
        return cls(stem, tuple(sorted((name.upper(), str(value)) for name, value in constants.items())))

    @property
    def options(self) -> tuple[str, ...]:
        return (*OPTIONS, *(f"-D{name}={value}" for name, value in self.constants))

    @property
    def source(self) -> str:
        return with_headers(f"{self.stem}.cu")


class Kernel:
    """What all launchers share: a compiled file, loaded at its first launch, and launches on the current stream."""

    def __init__(self, stem: str, **constants: int | float) -> None:
        self.spec = Spec.of(stem, constants)

    def launch(self, name: str, grid: Sequence[int], block: Sequence[int], *arguments: ARGUMENT) -> None:
        """Launch function `name` of the file: tensors as pointers, None as a null pointer, int as 32 bits, float as
        float32.
        """
        function(self.spec, name, torch.cuda.current_device())(
            tuple(grid), tuple(block), tuple(passed(a) for a in arguments)
        )


def passed(argument: ARGUMENT) -> np.generic:
    match argument:
        case Tensor():
            return np.uint64(argument.data_ptr())
        case None:
            return np.uint64(0)
        case int():
            return np.int32(argument)
        case _:
            return np.float32(argument)


def expect(name: str, tensor: Tensor, shape: Sequence[int], dtype: torch.dtype) -> None:
    """Raise ValueError where `tensor` is not a contiguous array of at least `shape` in its first axis, exactly in the
    others.
    """
    fits = tensor.dim() == len(shape) and tensor.shape[0] >= shape[0] and tuple(tensor.shape[1:]) == tuple(shape[1:])
    if not fits or tensor.dtype != dtype or not tensor.is_contiguous():
        layout = "" if tensor.is_contiguous() else f" of strides {tensor.stride()}"
        raise ValueError(
            f"{name}: {tensor.dtype} {list(tensor.shape)}{layout}, but a contiguous {dtype} {list(shape)} is needed"
        )


@cache
def function(spec: Spec, name: str, device: int) -> Any:
    """The compiled function on CUDA device `device`, which must be the current one. Compiles what is not cached."""
    return module(spec, device).get_function(name)


@cache
def module(spec: Spec, device: int) -> Any:
    import cupy

    return cupy.RawModule(code=spec.source, options=spec.options)


@cache
def with_headers(file: str) -> str:
    """The text of `file` with every header of ours in it once, each line under its own file and number."""
    return "".join(unrolled(file, set()))


def unrolled(file: str, seen: set[str]) -> list[str]:
    lines = [f'#line 1 "{file}"\n']
    for number, line in enumerate((FOLDER / file).read_text(encoding="utf-8").splitlines(), 1):
        header = INCLUDE.match(line)
        if header is None:
            lines.append("\n" if line == "#pragma once" else f"{line}\n")
        elif header[1] in seen:
            lines.append("\n")
        else:
            seen.add(header[1])
            lines += [*unrolled(header[1], seen), f'#line {number + 1} "{file}"\n']
    return lines


def entry_points() -> frozenset[str]:
    """Names of the kernels that a step may launch."""
    files = (file for file in FOLDER.glob("*.cu") if file.stem not in BESIDE_A_STEP)
    return frozenset(name for file in files for name in ENTRY.findall(file.read_text(encoding="utf-8")))
