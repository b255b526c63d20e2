"""Launches `prefill_down.cu`."""

from __future__ import annotations

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.experts.packing import Order, PackedExperts, tile_bytes
from specgate.backends.eagle3.cupy.kernels.loader import Kernel, announced, expect
from specgate.backends.eagle3.cupy.kernels.prefill.packed.packed_products import Parties, product_of
from specgate.checkpoints.geometry import ExpertGeometry


class PrefillDown(Kernel):
    """out = act · downᵀ of the expert of each pair, without the bias, bfloat16 [R · k, H], as parties have them."""

    def __init__(self, hidden: int, intermediate: int, experts: ExpertGeometry) -> None:
        self.hidden, self.intermediate, self.experts = hidden, intermediate, experts
        self.product = product_of(hidden, intermediate)
        super().__init__("prefill_down", **self.product.constants(), gathered=0, shared_bytes=self.product.shared_bytes)

    @announced
    def __call__(self, out: Tensor, act: Tensor, weight: PackedExperts, parties: Parties) -> None:
        """`act` float16 [R · k, F]; `weight` in the order PLAIN.

        Raises ValueError for operands that this launcher was not made for.
        """
        if weight.order is not Order.PLAIN:
            raise ValueError(f"weights in the order {weight.order.name}: rows have to be in PLAIN order")
        expect("out", out, (len(act), self.hidden), torch.bfloat16)
        expect("act", act, (len(act), self.intermediate), torch.float16)
        expect(
            *("weight", weight.tiles, (self.experts.count, self.product.tiles, tile_bytes(self.intermediate))),
            torch.uint8,
        )
        parties.check()
        self.launch(
            "prefill_down",
            (self.product.blocks(len(parties.table)),),
            (self.product.threads,),
            {
                "out": out,
                "x": act,
                "weight": weight.tiles,
                "parties": parties.table,
                "party_count": parties.count,
            },
        )
