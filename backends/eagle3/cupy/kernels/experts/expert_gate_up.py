"""Launches `expert_gate_up.cu`."""

from __future__ import annotations

from typing import Final

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.experts.expert_config import ExpertConfig, check_experts, constants_of
from specgate.backends.eagle3.cupy.kernels.experts.packing import TILE, Order, PackedExperts, tile_bytes
from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows
from specgate.checkpoints.geometry import ExpertGeometry

TILES: Final = 2
"""Tiles of weight that a block multiplies with at a time."""


class ExpertGateUp(Kernel):
    """act[r · k + j] = gate · σ(alpha · gate) · (up + 1) of the expert at place j of row r, whose logit is the j-th
    largest of the row: float16 [R · k, F]. gate is clamped from above, up on both sides.
    """

    def __init__(
        self, intermediate: int, hidden: int, experts: ExpertGeometry, rows: int, config: ExpertConfig | None = None
    ) -> None:
        """`rows`: the most that this launcher will see. Raises ValueError for a mixture that no kernel is made for."""
        check_experts(experts, rows)
        self.intermediate, self.hidden, self.experts, self.rows = intermediate, hidden, experts, rows
        self.tiles = 2 * intermediate // TILE
        self.config = (config or ExpertConfig.usual(hidden, self.tiles, TILES)).fitted()
        super().__init__(
            "expert_gate_up",
            n_out=intermediate,
            k_in=hidden,
            tiles_of_expert=self.tiles,
            row_groups_together=0,
            alpha=experts.alpha,
            limit=experts.limit,
            **constants_of(experts, self.config, rows),
            shared_bytes=self.config.shared_bytes,
        )

    def retiled(self, config: ExpertConfig) -> ExpertGateUp:
        """The same product with another configuration."""
        return ExpertGateUp(self.intermediate, self.hidden, self.experts, self.rows, config)

    def __call__(self, act: Tensor, x: Tensor, weight: PackedExperts, logits: Tensor, rows: Rows) -> None:
        """`x` float16 [R, H]; `weight` in the order PAIRED; `logits` float32 [R, E].

        Raises ValueError for operands that this launcher was not made for.
        """
        if rows.most > self.rows:
            raise ValueError(f"{rows.most} rows for a launcher of {self.rows}")
        if weight.order is not Order.PAIRED:
            raise ValueError(f"weights in the order {weight.order.name}: gate and up rows have to be PAIRED")
        operands = {"act": act, "x": x, "weight": weight.tiles, "bias": weight.bias, "logits": logits}
        threads = self.config.warps * 32
        self.launch((self.config.blocks,), rows, threads=threads, **operands, TILE_BYTES=tile_bytes(self.hidden))
