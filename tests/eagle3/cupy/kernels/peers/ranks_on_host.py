"""Several ranks on a CPU: each is a thread with libraries of its own, and they write into each other's mailboxes."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch

from specgate.backends.eagle3.cupy.kernels.experts import expert_config
from specgate.backends.eagle3.cupy.kernels.loader import Kernel, Spec
from tests.eagle3.cupy.kernels.host import Host
from tests.eagle3.cupy.kernels.launches import without_cupy

Result = TypeVar("Result")


class RankHost(Host):
    """Runs what `shared` has compiled, from copies: a library has one state, and so serves one thread."""

    def __init__(self, folder: Path, shared: Host) -> None:
        folder.mkdir()
        super().__init__(folder)
        self.shared = shared

    def compile(self, text: str, library: Path) -> None:
        source = self.shared.kept / library.name
        with COMPILING:
            if not source.exists():
                self.shared.compile(text, source)
        shutil.copy(source, library)

    @property
    def surroundings(self) -> str:
        with COMPILING:
            return self.shared.surroundings


COMPILING = threading.Lock()
RUNNING = threading.local()


class Ranks:
    """Threads that live as long as their libraries: a kernel's fibers belong to the thread that made them."""

    def __init__(self, count: int, folder: Path, shared: Host) -> None:
        self.pools = [ThreadPoolExecutor(1) for _ in range(count)]
        hosts = [RankHost(folder / f"rank-{rank}", shared) for rank in range(count)]
        for pool, host in zip(self.pools, hosts, strict=True):
            pool.submit(setattr, RUNNING, "host", host).result()

    def each(self, work: Callable[[int], Result], ranks: Sequence[int] | None = None) -> list[Result]:
        """`work(rank)` on all `ranks` at the same time."""

        def run(rank: int) -> Result:
            with torch.inference_mode():
                return work(rank)

        chosen = range(len(self.pools)) if ranks is None else ranks
        return [done.result() for done in [self.pools[rank].submit(run, rank) for rank in chosen]]

    def close(self) -> None:
        for pool in self.pools:
            pool.shutdown()


@contextmanager
def kernels_from_source(host: Host) -> Iterator[None]:
    """Every launch runs in the calling thread: a rank's by its own libraries, others by those of `host`. One of experts
    has few blocks, which run one after the other.
    """

    def enqueue(*arguments: Any, **keywords: Any) -> None:
        getattr(RUNNING, "host", host).enqueue(*arguments, **keywords)

    with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
        patch.setattr(Kernel, "enqueue", enqueue)
        patch.setattr(expert_config, "PROCESSORS", 3)
        without_cupy(patch)
        yield


def limited(spec: Spec) -> int:
    """Return the milliseconds that a kernel of `spec` waits for another rank."""
    return int(dict(spec.constants)["LIMIT_MS"])
