"""A whole engine step as one CUDA graph: warm up, capture, replay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from specgate.backends.cupy_eagle3.buffers import Buffers, tensors_of
from specgate.backends.cupy_eagle3.nvtx import mark
from specgate.backends.cupy_eagle3.sizes import Sizes
from specgate.backends.cupy_eagle3.stream import Stream
from specgate.errors import BackendError


@dataclass(frozen=True, slots=True)
class GraphGeometry:
    """What a graph has baked in: draft length, slots, sizes, and the address of every buffer."""

    k: int
    slots: int
    sizes: Sizes
    addresses: int

    @classmethod
    def of(cls, k: int, slots: int, sizes: Sizes, buffers: Buffers) -> GraphGeometry:
        return cls(k, slots, sizes, hash(tuple(t.data_ptr() for t in tensors_of(buffers))))


def captured(launches: Callable[[], None], stream: Stream) -> Any:
    """Run `launches` once on `stream`, then record them as a CUDA graph."""
    with stream.current():
        launches()  # warm up: compiles and loads what a capture could not
        stream.wait()
        stream.cupy.begin_capture()
        launches()
        return stream.cupy.end_capture()


class Graph:
    """Captured launches. Replays for the exact geometry that it was captured with, and for no other."""

    def __init__(self, name: str, geometry: GraphGeometry, launches: Callable[[], None], stream: Stream) -> None:
        """Run `launches` once, which must change nothing (no slot may be active), then record them."""
        self.name, self.geometry, self.stream = name, geometry, stream
        self.graph = captured(launches, stream)

    def replay(self, geometry: GraphGeometry) -> None:
        """Enqueue one step. Raises BackendError where it was captured for something else."""
        if geometry != self.geometry:
            raise BackendError(f"graph {self.name} was captured for {self.geometry}, but {geometry} is to be run")
        with mark(self.name):
            self.graph.launch(self.stream.cupy)
