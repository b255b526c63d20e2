"""Launches `prefill_gate_up.cu`."""

from __future__ import annotations

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.experts.packing import Order, PackedExperts, tile_bytes
from specgate.backends.eagle3.cupy.kernels.loader import Kernel, announced, expect
from specgate.backends.eagle3.cupy.kernels.prefill.packed.packed_products import Parties, product_of
from specgate.checkpoints.geometry import ExpertGeometry


class PrefillGateUp(Kernel):
    """act = SwiGLU(x[row] · gate_upᵀ + bias) of the expert of each pair, float16 [R · k, F], as parties have them."""

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

    @announced
    def __call__(self, act: Tensor, x: Tensor, weight: PackedExperts, parties: Parties) -> None:
        """`x` float16 [R, H]; `weight` in the order PAIRED.

        Raises ValueError for operands that this launcher was not made for.
        """
        if weight.order is not Order.PAIRED:
            raise ValueError(f"weights in the order {weight.order.name}: gates and ups have to be PAIRED")
        count = self.experts.count
        expect("act", act, (len(x) * self.experts.per_token, self.intermediate), torch.float16)
        expect("x", x, (len(x), self.hidden), torch.float16)
        expect("weight", weight.tiles, (count, self.product.tiles, tile_bytes(self.hidden)), torch.uint8)
        expect("bias", weight.bias, (count, 2 * self.intermediate), torch.bfloat16)
        parties.check()
        self.launch(
            "prefill_gate_up",
            (self.product.blocks(len(parties.table)),),
            (self.product.threads,),
            {
                "act": act,
                "x": x,
                "weight": weight.tiles,
                "bias": weight.bias,
                "parties": parties.table,
                "party_count": parties.count,
            },
        )
