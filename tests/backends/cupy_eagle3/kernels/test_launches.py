"""Every launch of a step passes what its kernel declares, without a GPU: shapes on the `meta` device, and the signatures.

A kernel takes plain pointers, so a tensor of another dtype, or in another place, would be read as something else.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from specgate.backends.cupy_eagle3.buffers import Buffers
from specgate.backends.cupy_eagle3.cycle import Cycle
from specgate.backends.cupy_eagle3.kernels.loader import ARGUMENT, FOLDER, Kernel
from specgate.backends.cupy_eagle3.sizes import Sizes
from specgate.pairs.plant.geometries import GEOMETRIES
from tests.backends.cupy_eagle3.pairs import BOUNDARIES, DRAFT, TARGET, without_weights

POINTERS = {
    "bf16": torch.bfloat16,
    "float": torch.float32,
    "float2": torch.float32,
    "int": torch.int32,
    "long long": torch.int64,
    "Choice": torch.int64,
}
"""Element types of kernel parameters, as dtypes; `void` may be anything."""
POSITIONS = 1024


@dataclass(frozen=True, slots=True)
class Launch:
    stem: str
    name: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    arguments: tuple[ARGUMENT, ...]


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[Launch]:
    """What is launched from now on, in order; nothing runs."""
    seen: list[Launch] = []

    def record(kernel: Kernel, name: str, grid: Sequence[int], block: Sequence[int], *arguments: ARGUMENT) -> None:
        seen.append(Launch(kernel.spec.stem, name, tuple(grid), tuple(block), arguments))

    monkeypatch.setattr(Kernel, "launch", record)
    return seen


@pytest.fixture
def ranges(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The NVTX ranges that are opened from now on, in order."""
    seen: list[str] = []
    nvtx = SimpleNamespace(RangePush=seen.append, RangePop=lambda: None)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "cupy.cuda", SimpleNamespace(nvtx=nvtx))
    return seen


def run_step(k: int, slots: int = 4, geometry: str | None = None) -> None:
    """A step of spec-`k` over some of the slots of an engine that could hold one more of everything."""
    sizes = Sizes(slots + 1, POSITIONS, k + 2)
    if geometry is None:
        pair = without_weights(TARGET, DRAFT, BOUNDARIES, POSITIONS)
    else:
        planted = GEOMETRIES[geometry]()
        pair = without_weights(planted.target, planted.draft, planted.boundaries, POSITIONS)
    buffers = Buffers.allocate(pair[0].geometry, pair[1].geometry, sizes, "meta")
    Cycle(*pair, sizes, slots, k)(buffers)


def parameters(stem: str, name: str) -> list[str]:
    """The types of a kernel's parameters, as its file declares them."""
    text = (FOLDER / f"{stem}.cu").read_text(encoding="utf-8")
    declared = re.search(rf'extern "C" __global__ [^{{]*?void {name}\(([^)]*)\)', text)
    assert declared, f"{stem}.cu declares no kernel {name}"
    return [" ".join(parameter.split()[:-1]).removeprefix("const ") for parameter in declared[1].split(",")]


def mismatches(launch: Launch) -> Iterator[str]:
    declared = parameters(launch.stem, launch.name)
    if len(declared) != len(launch.arguments):
        yield f"{len(launch.arguments)} arguments for {len(declared)} parameters"
        return
    for place, (parameter, argument) in enumerate(zip(declared, launch.arguments, strict=True)):
        if parameter.endswith("*"):
            wanted = POINTERS.get(parameter[:-1])
            fits = argument is None or (isinstance(argument, Tensor) and argument.dtype in (wanted, argument.dtype)[: 1 + (parameter == "void*")])
        else:
            fits = type(argument).__name__ == parameter
        if not fits:
            yield f"argument {place} of {launch.name}: {parameter} is declared"
