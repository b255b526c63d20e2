"""Launches `prefill_gate_up.cu`."""

from __future__ import annotations

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.experts.packing import Order, PackedExperts, tile_bytes
from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.prefill.packed.packed_products import RowGroups, product_of
from specgate.checkpoints.geometry import ExpertGeometry


class PrefillGateUp(Kernel):
    """act = SwiGLU(x[row] · gate_upᵀ + bias) of the expert of each pair, float16 [R · k, F], sorted as row groups."""

    def __init__(self, intermediate: int, hidden: int, experts: ExpertGeometry) -> None:
        self.intermediate, self.hidden, self.experts = intermediate, hidden, experts
        self.product = product_of(2 * intermediate, hidden)
        super().__init__(
            "prefill_gate_up",
            **self.product.constants(),
            gathered=1,
            alpha=experts.alpha,
            limit=experts.limit,
            shared_bytes=self.product.shared_bytes,
        )

    def __call__(self, act: Tensor, x: Tensor, weight: PackedExperts, row_groups: RowGroups) -> None:
        """`x` float16 [R, H]; `weight` in the order PAIRED.

        Raises ValueError for operands that this launcher was not made for.
        """
        if weight.order is not Order.PAIRED:
            raise ValueError(f"weights in the order {weight.order.name}: gates and ups have to be PAIRED")
        pairs = len(x) * self.experts.per_token
        sizes = {"R": len(x), "PAIRS": pairs, "EXPERTS": self.experts.count, "TILE_BYTES": tile_bytes(self.hidden)}
        blocks = self.product.blocks(len(row_groups.row_groups))
        self.launch((blocks,), row_groups, act=act, x=x, weight=weight.tiles, bias=weight.bias, **sizes)
