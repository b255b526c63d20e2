"""Part of a cache that a partial verification reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from specgate.backends.eagle3.cupy.kernels.heads import BLOCK
from specgate.backends.eagle3.lib import specpv

KEPT: Final = specpv.BLOCK
"""Positions of a block that is kept or left out."""


@dataclass(frozen=True, slots=True)
class KeptBlocks:
    """Of a slot's blocks of `KEPT` positions the first `sink`, `retrieval` of the middle, and all from the window on,
    which has at least `window` blocks. Up to `unseen` positions come behind those that chose the window.
    """

    sink: int
    retrieval: int
    window: int
    unseen: int

    @property
    def positions(self) -> int:
        """Most positions that rows see."""
        return (self.sink + self.retrieval + self.window + 1) * KEPT + self.unseen

    @property
    def constants(self) -> dict[str, int]:
        """Return the constants of `middle.cuh` and of `kept_blocks.cuh`."""
        kept = {"kept": KEPT, "kept_blocks": KEPT, "block": BLOCK, "sink_blocks": self.sink}
        return {**kept, "window_blocks": self.window, "retrieved": self.retrieval, "retrieved_blocks": self.retrieval}
