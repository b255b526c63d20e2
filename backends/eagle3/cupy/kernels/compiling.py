"""Kernels compiled in parallel, in processes of their own, because compiling takes longer than running them.

The compiled kernels come back through CuPy's disk cache.
"""

from __future__ import annotations

import multiprocessing as mp
import os
from collections.abc import Hashable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Final, TypeVar

import torch

from specgate.backends.eagle3.cupy.kernels.loader import Spec, architecture_of, module
from specgate.backends.eagle3.lib.memory import free_bytes
from specgate.errors import BackendError

Config = TypeVar("Config")
Made = TypeVar("Made", bound=Hashable)

MOST: Final = 16
"""Most processes at a time."""
CONTEXT: Final = 1 << 30
"""Bytes of the GPU's memory that a process may take for its own CUDA context."""


class Compiler:
    """Compiles in the processes of `pool`, and remembers what it has compiled."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self.pool = pool
        self.done: dict[Spec, str | None] = {}

    def compile(self, specs: Iterable[Spec]) -> Mapping[Spec, str | None]:
        """Kernel → the compiler's complaint; None where it compiled. Nothing is compiled twice.

        Raises BackendError where a process has ended.
        """
        unique = list(dict.fromkeys(specs))
        new = [spec for spec in unique if spec not in self.done]
        try:
            self.done.update(zip(new, self.pool.map(complaint, new), strict=True))
        except BrokenProcessPool as error:
            raise BackendError(f"a process that compiled kernels has ended: {error}") from error
        return {spec: self.done[spec] for spec in unique}


def distinct(kernels: Iterable[tuple[Config, Made]]) -> dict[Config, Made]:
    """Configuration → its kernels. Of several configurations that become the same kernels on this GPU, the first."""
    first = dict[Made, Config]()
    for config, of in kernels:
        first.setdefault(of, config)
    return {config: of for of, config in first.items()}


@contextmanager
def compiler() -> Iterator[Compiler]:
    """A compiler whose processes start with the first kernel and end with the context."""
    room = free_bytes(torch.device("cuda", torch.cuda.current_device())) // CONTEXT
    count = max(1, min(MOST, os.cpu_count() or 1, room))
    with ProcessPoolExecutor(count, mp_context=mp.get_context("spawn")) as pool:
        try:
            yield Compiler(pool)
        finally:
            pool.shutdown(cancel_futures=True)


def complaint(spec: Spec) -> str | None:
    """The first error of the compiler, or None. Runs in a process of its own."""
    from cupy.cuda.compiler import CompileException

    try:
        with architecture_of(spec):
            module(spec, 0).compile()
    except CompileException as error:
        return next((line for line in str(error).splitlines() if "error" in line), "the compiler refuses it")
    return None
