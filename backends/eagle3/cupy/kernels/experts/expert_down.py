"""Launches `expert_down.cu`."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.experts.expert_config import ExpertConfig, check_experts, constants_of
from specgate.backends.eagle3.cupy.kernels.experts.packing import TILE, Order, PackedExperts, tile_bytes
from specgate.backends.eagle3.cupy.kernels.loader import Kernel, announced, expect
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import PreNormRows
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows
from specgate.checkpoints.geometry import ExpertGeometry

TILES: Final = 2
"""Tiles of weight that a block multiplies with at a time."""


class ExpertDown(Kernel):
    """stream[r] += Σ_j weight_j · (act[r · k + j] · downᵀ + bias) over the places j of row r, in their order; and the
    `PreNormRows` of the next norm. The weights are the softmax over the row's k largest logits.

    With `partial` it is stream[r] = that sum, and no norm: other GPUs have the rest of the experts' width.
    """

    def __init__(
        self,
        hidden: int,
        intermediate: int,
        experts: ExpertGeometry,
        rows: int,
        config: ExpertConfig | None = None,
        *,
        partial: bool = False,
    ) -> None:
        """`rows`: the most that this launcher will see. Raises ValueError for a mixture that no kernel is made for."""
        check_experts(experts, rows)
        self.hidden, self.intermediate, self.experts, self.rows = hidden, intermediate, experts, rows
        self.partial = partial
        self.tiles = hidden // TILE
        self.config = (config or ExpertConfig.usual(intermediate, self.tiles, TILES)).fitted()
        super().__init__(
            "expert_down",
            n_out=hidden,
            k_in=intermediate,
            tiles_of_expert=self.tiles,
            parties_together=1,
            **constants_of(experts, self.config, rows),
            **({"partial": 1} if partial else {}),
            shared_bytes=self.config.shared_bytes,
        )

    def retiled(self, config: ExpertConfig) -> ExpertDown:
        """The same product with another configuration."""
        return ExpertDown(self.hidden, self.intermediate, self.experts, self.rows, config, partial=self.partial)

    @announced
    def __call__(
        self,
        stream: Tensor,
        norm: tuple[PreNormRows, Tensor] | None,
        parts: Tensor,
        finished: Tensor,
        act: Tensor,
        weight: PackedExperts,
        logits: Tensor,
        rows: Rows,
        *,
        log: tuple[Tensor, Tensor, int],
    ) -> None:
        """`stream` float32 [R, H]; `norm`: where the rows of the next norm are left, and its weight bfloat16 [H], or
        None of a launcher that is `partial`; `parts` float32 [R · k, H] is a workspace; `finished` int32 [H / 16] is
        zero before and after; `act` float16 [R · k, F]; `weight` in the order PLAIN; `logits` float32 [R, E]. `log`:
        where the number of experts that have rows is stored, int32 [steps, layers], for which step, int32 [1], and for
        which layer.

        Raises ValueError for operands that this launcher was not made for.
        """
        if rows.most > self.rows:
            raise ValueError(f"{rows.most} rows for a launcher of {self.rows}")
        if weight.order is not Order.PLAIN:
            raise ValueError(f"weights in the order {weight.order.name}: rows have to be in PLAIN order")
        if (norm is None) != self.partial:
            raise ValueError(f"made for partial = {self.partial}")
        count, pairs = self.experts.count, rows.most * self.experts.per_token
        expect("stream", stream, (rows.most, self.hidden), torch.float32)
        left: tuple[Tensor | None, Tensor | None, Tensor | None] = None, None, None
        if norm is not None:
            norm[0].check(rows.most, self.hidden)
            expect("norm weight", norm[1], (self.hidden,), torch.bfloat16)
            left = norm[0].rows, norm[0].squares, norm[1]
        expect("parts", parts, (pairs, self.hidden), torch.float32)
        expect("finished", finished, (self.tiles,), torch.int32)
        expect("act", act, (pairs, self.intermediate), torch.float16)
        expect("weight", weight.tiles, (count, self.tiles, tile_bytes(self.intermediate)), torch.uint8)
        expect("bias", weight.bias, (count, self.hidden), torch.bfloat16)
        expect("logits", logits, (rows.most, count), torch.float32)
        touched, step, layer = log
        expect("touched", touched, (1, touched.shape[1]), torch.int32)
        expect("step", step, (1,), torch.int32)
        self.launch(
            "expert_down",
            (self.config.blocks,),
            (self.config.warps * 32,),
            {
                "stream": stream,
                "normed": left[0],
                "squares": left[1],
                "parts": parts,
                "finished": finished,
                "act": act,
                "weight": weight.tiles,
                "bias": weight.bias,
                "norm_weight": left[2],
                "logits": logits,
                "active_count": rows.active_count,
                "touched": touched,
                "step": step,
                "rows_per_slot": rows.per_slot,
                "layer": layer,
                "layers": touched.shape[1],
            },
        )
