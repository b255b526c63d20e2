"""From a `.cu` file and its constants to launches of its functions, and a listener who is told of them.

Our headers are written into the text of a kernel. CuPy's disk cache does not look at files that are found by `-I`, so
that after an edit to a header alone it would serve the old binary. `#line` keeps the compiler's messages true to the
files.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache, wraps
from inspect import signature
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

import torch
from torch import Tensor

from specgate.errors import BackendError

FOLDER: Final = Path(__file__).parent
ENTRY: Final = re.compile(r'extern "C" __global__ (?:\w+\([^)]*\)\s+)*void (\w+)\(')
INCLUDE: Final = re.compile(r'#include "([\w.]+)"')
OPTIONS: Final = (
    "--std=c++17",
    # Every variant of a kernel must round alike: the compiler may not choose where a product and a sum are fused.
    "--fmad=false",
)
BESIDE_A_STEP: Final = frozenset({"read_memory"})
"""Kernel files that measure the device; no step launches them."""
PREFILL: Final = "prefill"
"""The folder of kernels that a prefill launches and no step does."""
ARGUMENT = Tensor | int | float | None
"""A field of the struct that a kernel takes."""


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
    """What all launchers share: a file that is compiled and loaded at its first launch, and how it is launched.

    `shared_bytes`: bytes of dynamic shared memory of a block, unless a launch says otherwise. Every function has one
    such size.
    """

    def __init__(self, stem: str, *, shared_bytes: int = 0, **constants: int | float) -> None:
        self.spec = Spec.of(stem, constants)
        self.shared_bytes = shared_bytes

    def launch(
        self,
        name: str,
        grid: Sequence[int],
        block: Sequence[int],
        arguments: Mapping[str, ARGUMENT],
        shared_bytes: int | None = None,
    ) -> None:
        """Launch function `name` of the file on the current stream, and tell the listener of it, if there is one."""
        launch = Launch(self, name, tuple(grid), tuple(block), arguments, shared_bytes)
        if (listener := LISTENER.get()) is not None:
            listener.launched(launch)
        launch()

    def enqueue(
        self,
        name: str,
        grid: Sequence[int],
        block: Sequence[int],
        arguments: Mapping[str, ARGUMENT],
        shared_bytes: int | None = None,
    ) -> None:
        """What `launch` does, without telling anybody. The function takes one struct, whose fields `arguments` are, by
        name and in order.

        Every kernel of ours waits for the one before it by itself (`dependent.cuh`), and so may be started early.
        """
        import cupy
        from cuda.bindings import driver

        device, shared = torch.cuda.current_device(), self.shared_bytes if shared_bytes is None else shared_bytes
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = (*grid, 1, 1)[:3]
        config.blockDimX, config.blockDimY, config.blockDimZ = (*block, 1, 1)[:3]
        config.sharedMemBytes = shared
        config.hStream = driver.CUstream(cupy.cuda.get_current_stream().ptr)
        config.attrs = early_start() if torch.cuda.get_device_capability(device) >= (9, 0) else []
        config.numAttrs = len(config.attrs)
        pointer = function(self.spec, name, device, shared)
        (status,) = driver.cuLaunchKernelEx(config, pointer, ((packed(arguments),), (None,)), 0)
        if status != driver.CUresult.CUDA_SUCCESS:
            raise BackendError(f"{self.spec.stem}.cu: {name}{tuple(grid)}x{tuple(block)}: {status.name}")


@dataclass(frozen=True, slots=True)
class Launch:
    """What `Kernel.launch` was given. Calling it launches the same once more."""

    kernel: Kernel
    name: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    arguments: Mapping[str, ARGUMENT]
    shared_bytes: int | None = None

    def __call__(self) -> None:
        self.kernel.enqueue(self.name, self.grid, self.block, self.arguments, shared_bytes=self.shared_bytes)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(a for a in self.arguments.values() if isinstance(a, Tensor))

    def copied(self, largest: int) -> Launch:
        """The same on copies of its tensors. Those above `largest` bytes are not copied but shared."""
        return replace(
            self,
            arguments={
                name: a.clone() if isinstance(a, Tensor) and a.nbytes <= largest else a
                for name, a in self.arguments.items()
            },
        )


class Listener(Protocol):
    """Hears what the launchers of a context do, before they do it."""

    def called(self, kernel: Kernel, named: Mapping[str, Any]) -> None:
        """`kernel` is called with the arguments `named`; what it launches for this call comes next."""

    def launched(self, launch: Launch) -> None:
        """`launch` is made."""


LISTENER: Final[ContextVar[Listener | None]] = ContextVar("LISTENER", default=None)
"""The listener of the current context; usually there is none. Replaying a captured graph does not ask for it."""
Parameters = ParamSpec("Parameters")
Launcher = TypeVar("Launcher", bound=Kernel)


def announced(
    call: Callable[Concatenate[Launcher, Parameters], None],
) -> Callable[Concatenate[Launcher, Parameters], None]:
    """Decorates the `__call__` of every launcher: it tells the listener, if there is one, what it is called with."""
    bind = signature(call).bind

    @wraps(call)
    def announcing(kernel: Launcher, /, *arguments: Parameters.args, **keywords: Parameters.kwargs) -> None:
        if (listener := LISTENER.get()) is not None:
            named = dict(bind(kernel, *arguments, **keywords).arguments)
            listener.called(kernel, {name: value for name, value in named.items() if name != "self"})
        call(kernel, *arguments, **keywords)

    return announcing


@cache
def early_start() -> list[Any]:
    from cuda.bindings import driver

    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value.programmaticStreamSerializationAllowed = 1
    return [attribute]


def packed(arguments: Mapping[str, ARGUMENT]) -> ctypes.Structure:
    """The struct of these fields in C's layout, as a kernel declares it.

    A tensor becomes a pointer, None a null pointer; an int has 32 bits, a float is float32.
    """
    values = {name: passed(argument) for name, argument in arguments.items()}
    layout = struct_of(tuple((name, kind) for name, (_, kind) in values.items()))
    return layout(*(value for value, _ in values.values()))


@cache
def struct_of(fields: tuple[tuple[str, Any], ...]) -> type[ctypes.Structure]:
    """The C struct of `fields`, (name, ctypes type) each, with the alignment that the compiler gives them."""
    return type("Arguments", (ctypes.Structure,), {"_fields_": fields})


def passed(argument: ARGUMENT) -> tuple[int | float, Any]:
    """The value of a kernel's argument, and its C type."""
    match argument:
        case Tensor():
            return argument.data_ptr(), ctypes.c_void_p
        case None:
            return 0, ctypes.c_void_p
        case int():
            return argument, ctypes.c_int
        case _:
            return argument, ctypes.c_float


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
def function(spec: Spec, name: str, device: int, shared_bytes: int) -> int:
    """Handle of function `name` of a kernel on CUDA device `device`, which must be the current one. Compiles the kernel
    where it is not cached.
    """
    kernel = module(spec, device).get_function(name)
    kernel.max_dynamic_shared_size_bytes = shared_bytes
    if spec.stem not in BESIDE_A_STEP:
        # An SM whose memory is divided for little shared memory has to drain before a block that needs much can start.
        # What measures the device takes the rest, L1 cache, instead.
        kernel.preferred_shared_memory_carveout = 100
    return int(kernel.kernel.ptr)


@cache
def module(spec: Spec, device: int) -> Any:
    import cupy

    return cupy.RawModule(code=spec.source, options=spec.options)


def kernel_files() -> Mapping[str, Path]:
    """File name → kernel file or header, in whichever folder below this one it lies. No two have the same name."""
    return {file.name: file for file in sorted(FOLDER.rglob("*.cu*")) if file.suffix in (".cu", ".cuh")}


@cache
def with_headers(file: str) -> str:
    """The text of `file` with every header of ours in it once, each line under its own file and number."""
    return "".join(unrolled(file, kernel_files(), set()))


def unrolled(file: str, files: Mapping[str, Path], seen: set[str]) -> list[str]:
    """The lines of `file`, with the headers of `files` that it includes and that are not `seen` yet in their places."""
    lines = [f'#line 1 "{file}"\n']
    for number, line in enumerate(files[file].read_text(encoding="utf-8").splitlines(), 1):
        header = INCLUDE.match(line)
        if header is None:
            lines.append("\n" if line == "#pragma once" else f"{line}\n")
        elif header[1] in seen:
            lines.append("\n")
        else:
            seen.add(header[1])
            lines += [*unrolled(header[1], files, seen), f'#line {number + 1} "{file}"\n']
    return lines


def entry_points() -> frozenset[str]:
    """Names of the kernels that a step may launch."""
    files = (
        file
        for file in kernel_files().values()
        if file.suffix == ".cu" and file.stem not in BESIDE_A_STEP and PREFILL not in file.relative_to(FOLDER).parts
    )
    return frozenset(name for file in files for name in ENTRY.findall(file.read_text(encoding="utf-8")))
