"""Launchers of the kernels of experts."""

from __future__ import annotations

from typing import Any, Final

from specgate.backends.eagle3.cupy.kernels.experts.expert_config import ExpertConfig, check_experts, constants_of
from specgate.backends.eagle3.cupy.kernels.experts.packing import TILE
from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.checkpoints.geometry import ExpertGeometry

WARPS: Final = 4
"""Experts of a block."""
ROW_GROUPS: Final = 4
"""Groups of rows, each multiplied by blocks of its own: the router is read once, and then from the L2 cache."""


class Route(Kernel):
    """logits = x · routerᵀ + bias, float32 [R, E], and x in float16 [R, H], of `PreNormRows`."""

    def __init__(self, hidden: int, experts: ExpertGeometry, rows: int) -> None:
        """`rows`: the most that this launcher will see. Raises ValueError for a mixture that no kernel is made for."""
        check_experts(experts, rows)
        self.hidden, self.experts = hidden, experts
        super().__init__(
            "route", MOST=rows, hidden=hidden, experts=experts.count, rows=-(-rows // ROW_GROUPS), warps=WARPS
        )


USUAL_TILES: Final = 2
"""Tiles of weight that a block multiplies with at a time."""


class ExpertProduct(Kernel):
    """A product with `n_out` results of `k_in` columns by the matrices of experts, of `tiles` tiles each."""

    def __init__(
        self,
        stem: str,
        n_out: int,
        k_in: int,
        experts: ExpertGeometry,
        rows: int,
        config: ExpertConfig | None,
        tiles: int,
        **switches: int | float,
    ) -> None:
        """`rows`: the most that this launcher will see. Raises ValueError for a mixture that no kernel is made for."""
        check_experts(experts, rows)
        self.n_out, self.k_in, self.experts, self.rows = n_out, k_in, experts, rows
        self.weight = tiles * TILE, k_in
        """Rows and columns of each matrix."""
        self.config = (config or ExpertConfig.usual(k_in, tiles, USUAL_TILES)).fitted()
        self.grid, self.threads = (self.config.blocks,), self.config.warps * 32
        super().__init__(
            stem,
            MOST=rows,
            BLOCKS=self.config.blocks,
            n_out=n_out,
            k_in=k_in,
            tiles_of_expert=tiles,
            **constants_of(experts, self.config, rows),
            **switches,
            shared_bytes=self.config.shared_bytes,
        )


class ExpertGateUp(ExpertProduct):
    """act[r · k + j] = gate · σ(alpha · gate) · (up + 1) of the expert at place j of row r, whose logit is the j-th
    largest of the row: float16 [R · k, F]. gate is clamped from above, up on both sides.
    """

    def __init__(
        self, intermediate: int, hidden: int, experts: ExpertGeometry, rows: int, config: ExpertConfig | None = None
    ) -> None:
        of = intermediate, hidden, experts, rows, config, 2 * intermediate // TILE
        super().__init__("expert_gate_up", *of, row_groups_together=0, alpha=experts.alpha, limit=experts.limit)

    def retiled(self, config: ExpertConfig) -> ExpertGateUp:
        """The same product with another configuration."""
        return ExpertGateUp(self.n_out, self.k_in, self.experts, self.rows, config)


class ExpertDown(ExpertProduct):
    """stream[r] += Σ_j weight_j · (act[r · k + j] · downᵀ + bias) over the places j of row r, in their order; and the
    `PreNormRows` of the next norm. The weights are the softmax over the row's k largest logits. Row `step` of `touched`
    has how many experts have rows in layer `layer`.

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
        self.partial, of = partial, (hidden, intermediate, experts, rows, config, hidden // TILE)
        switches: dict[str, Any] = {"partial": 1} if partial else {}
        super().__init__("expert_down", *of, row_groups_together=1, **switches)

    def retiled(self, config: ExpertConfig) -> ExpertDown:
        """The same product with another configuration."""
        return ExpertDown(self.n_out, self.k_in, self.experts, self.rows, config, partial=self.partial)
