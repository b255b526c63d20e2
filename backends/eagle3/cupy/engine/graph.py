"""Whole engine steps, several in a row, as one CUDA graph: warm up, capture, replay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from specgate.backends.eagle3.cupy.memory.buffers import Buffers, tensors_of
from specgate.backends.eagle3.cupy.memory.sizes import Sizes
from specgate.backends.eagle3.cupy.step.partial import Kind
from specgate.backends.eagle3.cupy.stream import Stream, mark
from specgate.errors import BackendError

STEPS_PER_GRAPH: Final = 8
"""How many steps a graph has, where so many are left to run. Between two graphs the GPU idles, and the first kernels of
each graph come late. Within a graph, the kernels of the next step are there when a step ends.
"""


@dataclass(frozen=True, slots=True)
class GraphGeometry:
    """Everything fixed in a captured graph: draft length, slots, sizes, the address of every buffer, and its steps."""

    k: int
    slots: int
    sizes: Sizes
    addresses: int
    kinds: tuple[Kind, ...]

    @classmethod
    def of(cls, k: int, slots: int, sizes: Sizes, buffers: Buffers, kinds: tuple[Kind, ...]) -> GraphGeometry:
        return cls(k, slots, sizes, hash(tuple(t.data_ptr() for t in tensors_of(buffers))), kinds)


def graph_sizes(steps: int) -> list[int]:
    """The number of steps of each graph, one graph after the other, that together run `steps` steps."""
    return [STEPS_PER_GRAPH] * (steps // STEPS_PER_GRAPH) + [1] * (steps % STEPS_PER_GRAPH)


def captured(launches: Callable[[], None], stream: Stream) -> Any:
    """Run `launches` once on `stream`, then record them as a CUDA graph."""
    with stream.current():
        launches()  # warm up: compiles and loads what a capture could not
        stream.wait()
        stream.cupy.begin_capture()
        launches()
        return stream.cupy.end_capture()


class Graph:
    """Captured launches, which can be replayed for the geometry that they were captured for, and for no other."""

    def __init__(self, name: str, geometry: GraphGeometry, launches: Callable[[], None], stream: Stream) -> None:
        """Run `launches` once, which must change nothing (no slot may be active), then record them."""
        self.name, self.geometry, self.stream = name, geometry, stream
        self.graph = captured(launches, stream)

    def replay(self, geometry: GraphGeometry) -> None:
        """Enqueue its steps. Raises BackendError where it was captured for something else."""
        if geometry != self.geometry:
            raise BackendError(f"graph {self.name} was captured for {self.geometry}, but {geometry} is to be run")
        with mark(self.name):
            self.graph.launch(self.stream.cupy)
