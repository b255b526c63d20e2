"""What an engine is built to hold. Everything that is allocated or launched follows from these numbers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from specgate.backends.cupy_eagle3.kernels.attention.fmha_config import FmhaConfig, usual_config
from specgate.backends.cupy_eagle3.kernels.heads import BLOCK, Heads
from specgate.core import Sampling
from specgate.eagle3.geometry import DraftGeometry, TargetGeometry


@dataclass(frozen=True, slots=True)
class Sizes:
    """`slots` requests at once, each with up to `positions` cached positions and `max_rows` rows per step (K + 1).

    `fmha`: how all attention is tiled. `sampling`: how tokens are drawn; None for greedy decoding.
    """

    slots: int
    positions: int
    max_rows: int
    fmha: FmhaConfig = field(default_factory=FmhaConfig)
    sampling: Sampling | None = None

    def usual(self, target: TargetGeometry) -> Sizes:
        """The same, with the tiling of attention that an engine for such a target uses by itself."""
        return replace(self, fmha=usual_config(self.heads(target), self.slots))

    @property
    def max_blocks(self) -> int:
        """Cache blocks per slot."""
        return -(-self.positions // BLOCK)

    @property
    def blocks(self) -> int:
        """Cache blocks in all: enough for every slot at its longest."""
        return self.slots * self.max_blocks

    @property
    def rows(self) -> int:
        return self.slots * self.max_rows

    def heads(self, geometry: TargetGeometry | DraftGeometry) -> Heads:
        return Heads(geometry.heads, geometry.kv_heads, geometry.head_dim, self.positions)
