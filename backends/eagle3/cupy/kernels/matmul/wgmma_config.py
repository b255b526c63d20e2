"""Division of the work of `matmul_wgmma.cu` on a weight. What a search tries is in `tuning/wgmma.py`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final

from specgate.backends.eagle3.cupy.device import Multiprocessors
from specgate.backends.eagle3.cupy.kernels.matmul.gemm_config import ROW_GROUP, ROW_TILE, SHARED_UNIT, TILE_BYTES

CAPABILITY: Final = (9, 0)
"""The one compute capability with this instruction."""
PIECE: Final = 64
"""Columns of k that are copied and multiplied at a time, and rows of weight of a box."""
BOXES: Final = (2, 4)
CLUSTERS: Final = (1, 2, 4, 8)
CHAINS: Final = (4, 8, 16)
STAGES: Final = range(2, 10)
BOX_BYTES: Final = PIECE * PIECE * 2
BARRIERS: Final = 16
"""Bytes of the two barriers of a stage."""


@dataclass(frozen=True, slots=True)
class WgmmaConfig:
    """`cluster` blocks share k. Sums run over `chain` pieces of it before they are added up. These two are part of the
    arithmetic, and serve a weight at every number of rows.

    The others only move work. A block has `boxes` boxes of weight, and `stages` pieces under way.
    `delay_dependents`: as in `GemmConfig`.
    """

    boxes: int = 2
    stages: int = 4
    cluster: int = 1
    chain: int = 8
    delay_dependents: int = 0

    def stored(self) -> dict[str, int]:
        return asdict(self)

    constants = property(stored)

    def possible(self, n_out: int, k_in: int) -> bool:
        """Return whether the kernel can work on a weight [n_out, k_in] like this."""
        pieces = -(-k_in // PIECE)
        known = self.boxes in BOXES and self.stages in STAGES and self.cluster in CLUSTERS and self.chain in CHAINS
        has_work = known and (self.cluster - 1) * -(-pieces // self.cluster) < pieces
        return has_work and k_in % 32 == 0 and n_out > 0 and self.delay_dependents in (0, 1)

    def grid(self, n: int, row_groups: int) -> tuple[int, ...]:
        """Blocks for a weight of `n` rows, gates and ups counted: those of a cluster beside each other."""
        return (-(-n // (PIECE * self.boxes)) * row_groups * self.cluster,)

    @property
    def threads(self) -> int:
        """Of a block."""
        return 128 * self.boxes + 32

    def shared_bytes(self, row_tiles: int) -> int:
        """Bytes of dynamic shared memory that a block needs."""
        ring = self.stages * (self.boxes * BOX_BYTES + row_tiles * ROW_TILE * PIECE * 2 + BARRIERS)
        sums = row_tiles * 4 * self.boxes * TILE_BYTES
        return -(-max(ring, sums) // SHARED_UNIT) * SHARED_UNIT


def row_tiles_of(rows: int) -> tuple[int, int]:
    """Return the groups of blocks that `rows` rows are divided among, and the tiles of rows of each: twos, up to 8."""
    groups = -(-rows // ROW_GROUP)
    return groups, 2 * -(-rows // (groups * 2 * ROW_TILE))


def unable(gpu: Multiprocessors | None) -> str | None:
    """Return why a GPU has no such products; None where it has, or where there is no GPU to ask."""
    if gpu is None or gpu.capability == CAPABILITY:
        return None
    return "products by wgmma need compute capability {}.{}, this GPU has {}.{}".format(*CAPABILITY, *gpu.capability)
