"""Launches `prefill_row_groups.cu`."""

from __future__ import annotations

from typing import Final

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.prefill.packed.packed_products import ROW_GROUP, RowGroups, most_row_groups
from specgate.checkpoints.geometry import ExpertGeometry

THREADS: Final = 256


class PrefillRowGroups(Kernel):
    """Row groups of the pairs of rows and experts, sorted by their expert and then by their row; and `place` int32
    [R, k]: the place of each pair among the sorted ones.
    """

    def __init__(self, experts: ExpertGeometry) -> None:
        super().__init__(
            "prefill_row_groups",
            experts=experts.count,
            per_token=experts.per_token,
            row_group=ROW_GROUP,
            threads=THREADS,
        )
        self.experts = experts

    def __call__(self, row_groups: RowGroups, place: Tensor, chosen: Tensor) -> None:
        """`chosen` int32 [R, k]: the experts of each row."""
        rows, pairs = len(chosen), chosen.numel()
        most = most_row_groups(pairs, self.experts.count)
        self.launch((self.experts.count,), row_groups, place=place, chosen=chosen, pairs=pairs, R=rows, ROW_GROUPS=most)
