"""Launches `route.cu`."""

from __future__ import annotations

from typing import Final

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.experts.expert_config import check_experts
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
