"""Launchers of the kernels of experts."""

from __future__ import annotations

from typing import Final

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.experts.expert_config import ExpertConfig, check_experts, constants_of
from specgate.backends.eagle3.cupy.kernels.experts.packing import TILE, Order, PackedExperts, tile_bytes
from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import PreNormRows
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows
from specgate.checkpoints.geometry import ExpertGeometry

WARPS: Final = 4
"""Experts of a block."""
ROW_GROUPS: Final = 4
"""Groups of rows that are multiplied side by side, each by blocks of its own: the router is read once, and then comes
from the L2 cache.
"""


class Route(Kernel):
    """logits = x · routerᵀ + bias, float32 [R, E], and x in float16 [R, H], of `PreNormRows`."""

    def __init__(self, hidden: int, experts: ExpertGeometry, rows: int) -> None:
        """`rows`: the most that this launcher will see. Raises ValueError for a mixture that no kernel is made for."""
        check_experts(experts, rows)
        self.hidden, self.experts, self.rows = hidden, experts, rows
        self.rows_of_block = -(-rows // ROW_GROUPS)
        super().__init__("route", hidden=hidden, experts=experts.count, rows=self.rows_of_block, warps=WARPS)

    def __call__(
        self,
        logits: Tensor,
        x16: Tensor,
        x: PreNormRows,
        router: Tensor,
        bias: Tensor,
        rows: Rows,
        *,
        eps: float,
    ) -> None:
        """`router` bfloat16 [E, H], `bias` bfloat16 [E].

        Raises ValueError for operands that this launcher was not made for.
        """
        if rows.most > self.rows:
            raise ValueError(f"{rows.most} rows for a launcher of {self.rows}")
        grid = -(-self.experts.count // WARPS), -(-rows.most // self.rows_of_block)
        self.launch(grid, x, rows, threads=WARPS * 32, logits=logits, x16=x16, router=router, bias=bias, eps=eps)


EXPERT_GATE_UP_TILES: Final = 2
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
        self.config = (config or ExpertConfig.usual(hidden, self.tiles, EXPERT_GATE_UP_TILES)).fitted()
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

    @property
    def grid(self) -> tuple[int, ...]:
        """Blocks of a launch."""
        return (self.config.blocks,)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.config.warps * 32

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
        self.launch(self.grid, rows, threads=self.threads, **operands, TILE_BYTES=tile_bytes(self.hidden))


EXPERT_DOWN_TILES: Final = 2
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
        self.config = (config or ExpertConfig.usual(intermediate, self.tiles, EXPERT_DOWN_TILES)).fitted()
        super().__init__(
            "expert_down",
            n_out=hidden,
            k_in=intermediate,
            tiles_of_expert=self.tiles,
            row_groups_together=1,
            **constants_of(experts, self.config, rows),
            **({"partial": 1} if partial else {}),
            shared_bytes=self.config.shared_bytes,
        )

    @property
    def grid(self) -> tuple[int, ...]:
        """Blocks of a launch."""
        return (self.config.blocks,)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.config.warps * 32

    def retiled(self, config: ExpertConfig) -> ExpertDown:
        """The same product with another configuration."""
        return ExpertDown(self.hidden, self.intermediate, self.experts, self.rows, config, partial=self.partial)

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
        touched, step, layer = log
        pre_norm, norm_weight = norm or (None, None)
        self.launch(
            self.grid,
            pre_norm,
            rows,
            threads=self.threads,
            stream=stream,
            parts=parts,
            finished=finished,
            act=act,
            weight=weight.tiles,
            bias=weight.bias,
            norm_weight=norm_weight,
            logits=logits,
            touched=touched,
            step=step,
            layer=layer,
            layers=touched.shape[1],
            TILE_BYTES=tile_bytes(self.intermediate),
        )
