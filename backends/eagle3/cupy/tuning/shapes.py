"""Every product that a pair's steps run, from its sizes alone."""

from __future__ import annotations

from collections.abc import Sequence

from specgate.backends.eagle3.cupy.bench.synthetic import Geometry, random_pair
from specgate.backends.eagle3.cupy.memory.sizes import Sizes
from specgate.backends.eagle3.cupy.step.cycle import Cycle
from specgate.backends.eagle3.nouns.gemms import GemmShape

POSITIONS = 1024
"""Any number: no product depends on it."""


def gemm_shapes(geometry: Geometry, batches: Sequence[int], draft_lengths: Sequence[int]) -> tuple[GemmShape, ...]:
    """The products of a baseline step, and of cycles of `draft_lengths`, over `batches` slots; sorted.

    The launchers of such steps are made, on a pair without weights, and asked.
    """
    target, draft = random_pair(geometry, POSITIONS, "meta")
    shapes = set[GemmShape]()
    for slots in batches:
        for k in {0, *(draft_lengths if draft else ())}:
            shapes.update(Cycle(target, draft, Sizes(slots, POSITIONS, k + 1), slots, k).gemms.shapes)
    return tuple(sorted(shapes))
