"""Launches `prefill_decode.cu`."""

from __future__ import annotations

from typing import Final

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.experts.packing import TILE, Order, PackedExperts, tile_bytes
from specgate.backends.eagle3.cupy.kernels.loader import Kernel

THREADS: Final = 256


class PrefillDecode(Kernel):
    """out = matrices of experts [N, K] as they are in the checkpoint, bfloat16: bit by bit `PackedExperts.matrix`."""

    def __init__(self, rows: int, columns: int, order: Order) -> None:
        super().__init__("prefill_decode", n_out=rows, k_in=columns, paired=int(order), threads=THREADS)
        self.rows, self.columns, self.order = rows, columns, order

    def __call__(self, out: Tensor, weight: PackedExperts, first: int, sizes: Tensor) -> None:
        """The experts from `first` on, as many as `out` bfloat16 [n, N, K] holds. `sizes` int32 [E]: the rows of each
        expert; where there are none, `out` stays as it is.

        Raises ValueError for operands that this launcher was not made for.
        """
        if weight.order is not self.order:
            raise ValueError(f"weights in the order {weight.order.name} for a launcher of {self.order.name}")
        experts, tiles = len(weight.tiles), self.rows // TILE
        if not 0 <= first <= experts - len(out):
            raise ValueError(f"{len(out)} experts from {first} on: there are {experts}")
        operands = {"out": out, "tiles": weight.tiles[first:], "sizes": sizes[first:]}
        self.launch((tiles, len(out)), **operands, COUNT=len(out), TILE_BYTES=tile_bytes(self.columns))
