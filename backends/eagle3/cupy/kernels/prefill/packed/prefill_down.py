"""Launches `prefill_down.cu`."""

from __future__ import annotations

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.experts.packing import Order, PackedExperts, tile_bytes
from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.prefill.packed.packed_products import RowGroups, product_of
from specgate.checkpoints.geometry import ExpertGeometry


class PrefillDown(Kernel):
    """out = act · downᵀ of the expert of each pair, without the bias, bfloat16 [R · k, H], as row groups have them."""

    def __init__(self, hidden: int, intermediate: int, experts: ExpertGeometry) -> None:
        self.hidden, self.intermediate, self.experts = hidden, intermediate, experts
        self.product = product_of(hidden, intermediate)
        super().__init__("prefill_down", **self.product.constants(), gathered=0, shared_bytes=self.product.shared_bytes)

    def __call__(self, out: Tensor, act: Tensor, weight: PackedExperts, row_groups: RowGroups) -> None:
        """`act` float16 [R · k, F]; `weight` in the order PLAIN.

        Raises ValueError for operands that this launcher was not made for.
        """
        if weight.order is not Order.PLAIN:
            raise ValueError(f"weights in the order {weight.order.name}: rows have to be in PLAIN order")
        sizes = {"PAIRS": len(act), "EXPERTS": self.experts.count, "TILE_BYTES": tile_bytes(self.intermediate)}
        blocks = self.product.blocks(len(row_groups.row_groups))
        self.launch((blocks,), row_groups, out=out, x=act, weight=weight.tiles, **sizes)
