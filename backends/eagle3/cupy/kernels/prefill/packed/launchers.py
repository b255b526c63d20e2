"""Launchers of the products of experts for few rows of prompts, and how these divide the work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.device import shared_memory_limit
from specgate.backends.eagle3.cupy.kernels.experts import expert_config
from specgate.backends.eagle3.cupy.kernels.experts.packing import LINE, NUMBERS, SCALES, TILE, slab_count
from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.checkpoints.geometry import ExpertGeometry

WARPS: Final = 12
"""Three for each quarter of an SM, with 168 registers of a thread."""
ROW_GROUP: Final = 48
"""Most rows of a row group: a piece of 16 bytes of each slab of x for each thread."""
RECORD: Final = 4 + ROW_GROUP
"""Words of a row group: its expert, its first pair, how many it has, an unused one, and the rows of its pairs."""
SWIZZLED: Final = 1024
"""Bytes of eight rows of a slab of x, as `wgmma` reads them."""
WEIGHT_TILES: Final = (3, 2, 1)
"""Tiles of a warp, the first that divides a matrix: rows of x are loaded from shared memory once for all of them."""
AT_ONCE: Final = (3, 1)
"""Slabs of a stage: what a step costs besides, it costs once for all of them."""
STAGES: Final = 6
"""Most stages in shared memory."""
LEAST_SLABS: Final = 4
"""In shared memory: a GPU that has no room for so many takes fewer at once, or fewer tiles. Three tiles' are 20 KB of
weights each. By Little's law 4.6 TB/s over 132 SMs need 35 KB on their way to each SM at a latency of 1 us.
"""


@dataclass(frozen=True, slots=True)
class RowGroups:
    """Pairs of rows and experts, sorted by their expert and cut into row groups.

    `row_groups` int32 [most, RECORD], of which there are `row_group_count` int32 [1]. A row group has at most ROW_GROUP
    pairs of one expert.
    """

    row_groups: Tensor
    row_group_count: Tensor

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes that launches name."""
        return {"ROW_GROUPS": len(self.row_groups)}

    @classmethod
    def room(cls, pairs: int, experts: int, device: torch.device) -> RowGroups:
        count = torch.empty(1, dtype=torch.int32, device=device)
        return cls(count.new_empty(most_row_groups(pairs, experts), RECORD), count)


def most_row_groups(pairs: int, experts: int) -> int:
    """Into which so many pairs can fall: whole ones, and one that is not whole of each expert."""
    return min(pairs, experts) + pairs // ROW_GROUP


@dataclass(frozen=True, slots=True)
class PackedProduct:
    """The product with a matrix of `tiles` tiles of 16 rows, of `columns` columns."""

    tiles: int
    columns: int
    wgmma: bool = False

    @property
    def stage(self) -> tuple[int, int]:
        """Tiles of a warp, and slabs, of a stage."""
        limit = shared_memory_limit()
        return next(
            (tiles, at_once)
            for tiles in WEIGHT_TILES
            for at_once in AT_ONCE
            if self.tiles % tiles == 0 and self.shared_of(-(-LEAST_SLABS // at_once), tiles, at_once) <= limit
        )

    @property
    def stages(self) -> int:
        most = min(STAGES, -(-slab_count(self.columns) // self.stage[1]) + 1)
        return next(n for n in range(most, 1, -1) if self.shared_of(n, *self.stage) <= shared_memory_limit())

    @property
    def shared_bytes(self) -> int:
        return self.shared_of(self.stages, *self.stage)

    def shared_of(self, stages: int, tiles: int, at_once: int) -> int:
        """Bytes of three row groups and of stages, each with slabs of x and of the weights of all warps."""
        unit = SWIZZLED if self.wgmma else LINE
        stage = at_once * (ROW_GROUP * LINE + WARPS * tiles * (NUMBERS + SCALES))
        return sum(-(-part // unit) * unit for part in (3 * RECORD * 4, *stages * [stage]))

    @property
    def constants(self) -> dict[str, int]:
        """Return the constants of the kernels, which have a block for each SM, and no more than there are items."""
        weight_tiles, at_once = self.stage
        return {
            "k_in": self.columns,
            "tiles": self.tiles,
            "weight_tiles": weight_tiles,
            "at_once": at_once,
            "stages": self.stages,
            "row_group": ROW_GROUP,
            "wgmma": self.wgmma,
            "threads": 32 * WARPS,
            "shared_bytes": self.shared_bytes,
            "PROCESSORS": expert_config.processors(),
        }


def for_wgmma(rows: Tensor) -> Tensor:
    """A view [R, K/32, 2, 2, 4, 2] of rows [R, K] in the order in which `wgmma` reads them beside packed weights: of
    each 32 k, k 8c + 4a + 2b + i lies at 16a + 8b + 2c + i.
    """
    return rows.view(len(rows), -1, 4, 2, 2, 2).permute(0, 1, 3, 4, 2, 5)


THREADS: Final = 256


class PrefillRowGroups(Kernel):
    """Row groups of the pairs of rows and experts, sorted by their expert and then by their row; and `place` int32
    [R, k]: the place of each pair among the sorted ones.
    """

    experts: int
    per_token: int
    row_group: int = ROW_GROUP
    threads: int = THREADS


class PrefillGateUp(Kernel):
    """act = SwiGLU(x[row] · gate_upᵀ + bias) of the expert of each pair, float16 [R · k, F], sorted as row groups.

    With `wgmma`, here and in `PrefillDown`, warpgroups multiply, and rows of x and of act are as `for_wgmma` has them.
    """

    intermediate: int
    hidden: int
    experts: ExpertGeometry
    wgmma: bool = False

    @property
    def constants(self) -> dict[str, int | float]:
        of, experts = PackedProduct(2 * self.intermediate // TILE, self.hidden, self.wgmma), self.experts
        own = {"gathered": 1, "alpha": experts.alpha, "limit": experts.limit}
        return {**of.constants, **own, "EXPERTS": experts.count, "PER_TOKEN": experts.per_token}


class PrefillDown(Kernel):
    """out = act · downᵀ of the expert of each pair, without the bias, bfloat16 [R · k, H], as row groups have them."""

    hidden: int
    intermediate: int
    experts: ExpertGeometry
    wgmma: bool = False

    @property
    def constants(self) -> dict[str, int | float]:
        of = PackedProduct(self.hidden // TILE, self.intermediate, self.wgmma)
        return {**of.constants, "gathered": 0, "EXPERTS": self.experts.count}
