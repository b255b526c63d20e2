"""Launches of the functions of a `.cu` file with its constants, and a listener to them.

Our headers are written into the text of a kernel. CuPy's disk cache does not look at files that are found by `-I`, so
that after an edit to a header alone it would serve the old binary. `#line` keeps the compiler's messages true to the
files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from functools import cache, lru_cache, wraps
from inspect import signature
from pathlib import Path
from typing import Any, Final, Protocol, Self, dataclass_transform
from unittest.mock import patch

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.checked import Blocks, CheckedLaunches
from specgate.backends.eagle3.cupy.kernels.operands import ARGUMENT, Operands, with_fields
from specgate.errors import BackendError

FOLDER: Final = Path(__file__).parent
ENTRY: Final = re.compile(r'extern "C" __global__ (?:\w+\([^)]*\)\s+)*void (\w+)\(')
WORDS: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
"""Where a word begins in the name of a class."""
INCLUDE: Final = re.compile(r'#include "([\w.]+)"')
OPTIONS: Final = (
    "--std=c++17",
    # Every variant of a kernel must round alike: the compiler may not choose where a product and a sum are fused.
    "--fmad=false",
)
BESIDE_A_STEP: Final = frozenset({"read_memory"})
"""Kernel files that measure the device; no step launches them."""
OF_SM_90A: Final = frozenset({"matmul_wgmma", "maxima_wgmma"})
"""Kernel files with instructions of compute capability 9.0 alone, which no code for `sm_90` may have. Others have them
where they are compiled with WGMMA.
"""
PREFILL: Final = "prefill"
"""The folder of kernels that a prefill launches and no step does."""


@dataclass(frozen=True, slots=True)
class Spec:
    """A kernel file, and the constants that it is compiled with."""

    stem: str
    constants: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, stem: str, constants: Mapping[str, int | float]) -> Spec:
        texts = {name: str(int(value) if isinstance(value, bool) else value) for name, value in constants.items()}
        return cls(stem, tuple(sorted((name.upper(), text) for name, text in texts.items())))

    @property
    def of_sm_90a(self) -> bool:
        return self.stem in OF_SM_90A or ("WGMMA", "1") in self.constants

    @property
    def options(self) -> tuple[str, ...]:
        return (*OPTIONS, *(f"-D{name}={value}" for name, value in self.constants))

    @property
    def source(self) -> str:
        return with_fields(with_headers(f"{self.stem}.cu"), self.constants)


@dataclass_transform(eq_default=False)
class Kernel:
    """A file that is compiled and loaded at its first launch. A launcher inherits from it, and so is a dataclass.

    Its fields are `constants` of the file, whose name is the launcher's in small letters. The file is compiled with
    those that it names. `shared_bytes`: bytes of dynamic shared memory of a block, unless a launch says otherwise.
    Every function has one such size. Constants in capitals are sizes of its launches, and nothing is compiled with
    them.
    """

    def __init__(self, stem: str, *, shared_bytes: int = 0, **constants: int | float) -> None:
        self.sizes = {name: value for name, value in constants.items() if name.isupper()}
        own = {name: value for name, value in constants.items() if not name.isupper()}
        self.spec = Spec.of(stem, {name: value for name, value in own.items() if name.upper() in words_of(stem)})
        self.shared_bytes = shared_bytes
        self._operands: dict[str, Operands] = {}
        self._checked: dict[tuple[str, int, tuple[str, ...]], CheckedLaunches] = {}
        self._handles: dict[tuple[str, int, int], Any] = {}

    def __post_init__(self) -> None:
        constants: dict[str, Any] = self.constants
        Kernel.__init__(self, WORDS.sub("_", type(self).__name__).lower(), **constants)

    @classmethod
    @cache
    def of(cls, *fields: Any, **named: Any) -> Self:
        """The launcher with these fields, which is made once."""
        return cls(*fields, **named)

    def __init_subclass__(cls) -> None:
        """Announce each call of a launcher to the listener."""
        dataclass(eq=False)(cls)
        # mypy refuses to replace a method; a decorator that each launcher has to carry could be forgotten.
        if "__call__" in vars(cls) or cls.__call__ is Kernel.__call__:
            cls.__call__ = announced(cls.__call__)  # type: ignore[method-assign]

    @property
    def constants(self) -> dict[str, int | float]:
        """Return what the file may be compiled with: the fields that are not None, or the `constants` of these."""
        made = dict[str, int | float]()
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if value is not None:
                own = {field.name: float(value) if field.type == "float" else value}
                made |= getattr(value, "constants", own)
        return made

    def __call__(self, *groups: Any, **operands: Any) -> None:
        """Launch the function with the file's name as the file says. Operands are as those of `launch`; of a step, the
        first group are its rows. Raises ValueError for what the launcher was not made for.
        """
        self.launch(None, *groups, **operands)

    def launch(
        self,
        grid: Sequence[int] | None,
        *groups: object,
        threads: Any = None,
        function: Any = "",
        shared_bytes: Any = None,
        **operands: Any,
    ) -> None:
        """Launch `function`, by default the one with the file's name, on the current stream, and announce it.

        `grid`: blocks, of so many `threads`, an int; None: as the file says. `shared_bytes`: if others than the
        kernel's. Operands that are not named are the attributes of this name of `groups`. Names in capitals are sizes:
        see `operands.py`, which checks all operands.
        """
        name = function or self.spec.stem
        arguments, blocks = self.checked(name, groups, operands, divided=grid is not None)
        if grid is None:
            assert blocks is not None
            grid, threads = blocks
        if (listener := LISTENER.get()) is not None:
            listener.launched(Launch(self, name, tuple(grid), (threads,), arguments, shared_bytes))
        self.enqueue(name, grid, (threads,), arguments, shared_bytes=shared_bytes)

    def checked(
        self, function: str, groups: Sequence[object], operands: Mapping[str, Any], *, divided: bool = False
    ) -> tuple[dict[str, ARGUMENT], Blocks | None]:
        """Return the arguments of a launch of `function`, and its blocks unless its caller has `divided` it. Raises
        ValueError for operands that it does not take.
        """
        form = function, len(groups), tuple(operands)
        if (launches := self._checked.get(form)) is None:
            made = CheckedLaunches(self.operands_of(function), self.sizes, form[2], len(groups))
            launches = self._checked[form] = made
        return launches(groups, operands, divided=divided)

    def operands_of(self, function: str) -> Operands:
        if function not in self._operands:
            self._operands[function] = declared_operands(self.spec, function)
        return self._operands[function]

    def enqueue(
        self,
        name: str,
        grid: Sequence[int],
        block: Sequence[int],
        arguments: Mapping[str, ARGUMENT],
        shared_bytes: int | None = None,
    ) -> None:
        """Launch function `name` with all of its operands, without a check or an announcement.

        Every kernel of ours waits for the one before it by itself (`dependent.cuh`), and so may be started early.
        """
        import cupy

        device, shared = torch.cuda.current_device(), self.shared_bytes if shared_bytes is None else shared_bytes
        place = name, device, shared
        if (handle := self._handles.get(place)) is None:
            handle = self._handles[place] = driver().CUfunction(function(self.spec, *place))
        stream = cupy.cuda.get_current_stream().ptr
        config, taken = configuration(tuple(grid), tuple(block), shared, stream, device), self.operands_of(name)
        (status,) = driver().cuLaunchKernelEx(config, handle, ((taken.packed(arguments),), (None,)), 0)
        if status != driver().CUresult.CUDA_SUCCESS:
            raise BackendError(f"{self.spec.stem}.cu: {name}{tuple(grid)}x{tuple(block)}: {status.name}")


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch with all of its operands. Calling it launches the same once more."""

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
    """Listens to what the launchers of a context do, before they do it."""

    def called(self, kernel: Kernel, named: Mapping[str, Any]) -> None:
        """`kernel` is called with the arguments `named`; what it launches for this call comes next."""

    def launched(self, launch: Launch) -> None:
        """`launch` is made."""


LISTENER: Final[ContextVar[Listener | None]] = ContextVar("LISTENER", default=None)
"""The listener of the current context; usually there is none. Replaying a captured graph does not ask for it."""


def announced(call: Callable[..., None]) -> Callable[..., None]:
    """Decorate the `__call__` of a launcher: it announces its arguments to the listener, if there is one."""
    bind = signature(call).bind

    @wraps(call)
    def announcing(kernel: Kernel, /, *arguments: Any, **keywords: Any) -> None:
        if (listener := LISTENER.get()) is not None:
            named = bind(kernel, *arguments, **keywords).arguments
            del named["self"]
            listener.called(kernel, {"rows": next(iter(arguments), None), **named, **named.get("operands", {})})
        call(kernel, *arguments, **keywords)

    return announcing


@cache
def driver() -> Any:
    """Return the module of the CUDA driver, which only launches need. An import statement takes longer."""
    from cuda.bindings import driver

    return driver


@cache
def early_start(device: int) -> list[Any]:
    """Return the attributes of launches on a CUDA device: that they may start early, where it can do that."""
    if torch.cuda.get_device_capability(device) < (9, 0):
        return []
    attribute = driver().CUlaunchAttribute()
    attribute.id = driver().CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value.programmaticStreamSerializationAllowed = 1
    return [attribute]


@lru_cache(maxsize=4096)
def configuration(grid: tuple[int, ...], block: tuple[int, ...], shared: int, stream: int, device: int) -> Any:
    """Return the configuration of launches. Threads share it, so nothing may be set in it."""
    config = driver().CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = (*grid, 1, 1)[:3]
    config.blockDimX, config.blockDimY, config.blockDimZ = (*block, 1, 1)[:3]
    config.sharedMemBytes = shared
    config.hStream = driver().CUstream(stream)
    config.attrs = early_start(device)
    config.numAttrs = len(config.attrs)
    return config


@cache
def declared_operands(spec: Spec, function: str) -> Operands:
    """Operands of a function of a kernel, as its source declares them."""
    return Operands.of(function, spec.source, spec.constants)


@cache
def function(spec: Spec, name: str, device: int, shared_bytes: int) -> int:
    """Handle of function `name` of a kernel on CUDA device `device`, which must be the current one. Compiles the kernel
    where it is not cached.
    """
    kernel = loaded(spec, name, device)
    kernel.max_dynamic_shared_size_bytes = shared_bytes
    if spec.stem not in BESIDE_A_STEP:
        # An SM whose memory is divided for little shared memory has to drain before a block that needs much can start.
        # What measures the device takes the rest, L1 cache, instead.
        kernel.preferred_shared_memory_carveout = 100
    return int(kernel.kernel.ptr)


def declared_shared_bytes(spec: Spec, name: str, device: int) -> int:
    """Bytes of shared memory that function `name` declares itself, beside those that a launch asks for."""
    return int(loaded(spec, name, device).shared_size_bytes)


@cache
def module(spec: Spec, device: int) -> Any:
    import cupy

    return cupy.RawModule(code=spec.source, options=spec.options)


@contextmanager
def architecture_of(spec: Spec) -> Iterator[None]:
    """Let CuPy compile for the architecture that `spec` needs. It has no option for another one than the GPU's."""
    if not spec.of_sm_90a:
        yield
        return
    with patch("cupy.cuda.compiler._get_arch_for_options_for_nvrtc", lambda _=None: ("-arch=sm_90a", "cubin")):
        yield


def loaded(spec: Spec, name: str, device: int) -> Any:
    """Function `name` of a kernel, by CuPy."""
    with architecture_of(spec):
        return module(spec, device).get_function(name)


def kernel_files() -> Mapping[str, Path]:
    """File name → kernel file or header, in whichever folder below this one it lies. No two have the same name."""
    return {file.name: file for file in sorted(FOLDER.rglob("*.cu*")) if file.suffix in (".cu", ".cuh")}


@cache
def with_headers(file: str) -> str:
    """The text of `file` with every header of ours in it once, each line under its own file and number."""
    return "".join(unrolled(file, kernel_files(), set()))


@cache
def words_of(stem: str) -> frozenset[str]:
    """Return the words of a kernel file and its headers, without those of comments."""
    return frozenset(re.findall(r"\w+", re.sub(r"//[^\n]*", "", with_headers(f"{stem}.cu"))))


def unrolled(file: str, files: Mapping[str, Path], included: set[str]) -> list[str]:
    """Return the lines of `file`, with the headers of `files` that it includes in their places, unless `included`."""
    lines = [f'#line 1 "{file}"\n']
    for number, line in enumerate(files[file].read_text(encoding="utf-8").splitlines(), 1):
        header = INCLUDE.match(line)
        if header is None:
            lines.append("\n" if line == "#pragma once" else f"{line}\n")
        elif header[1] in included:
            lines.append("\n")
        else:
            included.add(header[1])
            lines += [*unrolled(header[1], files, included), f'#line {number + 1} "{file}"\n']
    return lines


def entry_points() -> frozenset[str]:
    """Names of the kernels that a step may launch."""
    files = (
        file
        for file in kernel_files().values()
        if file.suffix == ".cu" and file.stem not in BESIDE_A_STEP and PREFILL not in file.relative_to(FOLDER).parts
    )
    return frozenset(name for file in files for name in ENTRY.findall(file.read_text(encoding="utf-8")))
