"""Arrays of verification over a part of the cache (SpecPV)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.attention.kept_blocks import KEPT
from specgate.backends.eagle3.cupy.kernels.heads import BLOCK, Heads
from specgate.backends.eagle3.lib.specpv import PartialPlan


@dataclass(frozen=True, slots=True)
class PartialBuffers:
    """For S slots, layers of G key/value heads, and caches of so many blocks.

    `bounds` bfloat16 [layers, blocks, G, BLOCK / KEPT, 2, D]: the largest and smallest keys of blocks of `KEPT`
    positions, where these lie before the window. `asked` bfloat16 [layers, S, T, N, D]: the newest queries of the last
    full verification; `scores` float32 [layers · S, G, blocks]: how well these may like each block; `kept` int32
    [layers, S, G, retrieval]: the blocks that are retrieved.

    Of each slot, int32 [S]: `verified`, positions whose keys and values are those of full verifications; `dropped`,
    positions that a partial one leaves out; `bounded`, how many blocks have bounds; `overruled`, tokens that a full
    verification would not have chosen.
    """

    bounds: Tensor
    asked: Tensor
    scores: Tensor
    kept: Tensor
    verified: Tensor
    dropped: Tensor
    bounded: Tensor
    overruled: Tensor

    @classmethod
    def allocate(
        cls,
        plan: PartialPlan,
        heads: Heads,
        layers: int,
        blocks: int,
        slots: int,
        rows: int,
        device: torch.device | str,
    ) -> PartialBuffers:
        """`rows`: T."""

        def of(dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        g, d, of_block = heads.kv_heads, heads.head_dim, BLOCK // KEPT
        return cls(
            bounds=of(torch.bfloat16, layers, blocks, g, of_block, 2, d),
            asked=of(torch.bfloat16, layers, slots, rows, heads.heads, d),
            scores=of(torch.float32, layers * slots, g, heads.max_blocks * of_block),
            kept=of(torch.int32, layers, slots, g, plan.retrieval),
            verified=of(torch.int32, slots),
            dropped=of(torch.int32, slots),
            bounded=of(torch.int32, slots),
            overruled=of(torch.int32, slots),
        )

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes that shapes of operands name."""
        return {"LAYERS": len(self.kept)}

    def begin(self, plan: PartialPlan, lengths: Sequence[int]) -> None:
        """Put the slots back to prompts of these lengths. It copies from the host: never within a decode run."""
        count = len(lengths)
        for zeroed in (self.dropped, self.overruled):
            zeroed.zero_()
        for tensor, values in ((self.verified, lengths), (self.bounded, [*map(plan.first_of_window, lengths)])):
            tensor[:count] = torch.tensor(list(values), dtype=torch.int32).to(tensor.device)
