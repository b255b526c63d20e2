"""Arrays of verification over a part of the cache (SpecPV)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.arrays import Arrays
from specgate.backends.eagle3.cupy.kernels.attention.kept_blocks import KEPT
from specgate.backends.eagle3.cupy.kernels.heads import BLOCK, Heads
from specgate.backends.eagle3.cupy.kernels.state.slots import OfSlots
from specgate.backends.eagle3.lib.specpv import PartialPlan


@dataclass(frozen=True, slots=True)
class PartialBuffers(Arrays):
    """For S slots, layers of G key/value heads, and caches of so many blocks.

    `bounds`: the largest and smallest keys of blocks of `KEPT` positions, EACH in a cache block, where these lie before
    the window. `asked`: the newest queries of the last full verification; `scores`: how well these may like each block;
    `kept`: the blocks that are retrieved.

    Of each slot: `verified`, positions whose keys and values are those of full verifications; `dropped`, positions that
    a partial one leaves out; `bounded`, how many blocks have bounds; `overruled`, tokens that a full verification would
    not have chosen.
    """

    bounds: Annotated[Tensor, "bfloat16 [LAYERS, BLOCKS, G, EACH, 2, D]"]
    asked: Annotated[Tensor, "bfloat16 [LAYERS, S, T, N, D]"]
    scores: Annotated[Tensor, "float32 [LAYERS * S, G, PER_SLOT * EACH]"]
    kept: Annotated[Tensor, "int32 [LAYERS, S, G, RETRIEVAL]"]
    verified: OfSlots
    dropped: OfSlots
    bounded: OfSlots
    overruled: OfSlots

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
        of_heads = {"N": heads.heads, "G": heads.kv_heads, "D": heads.head_dim, "PER_SLOT": heads.max_blocks}
        of_cache = {"LAYERS": layers, "BLOCKS": blocks, "EACH": BLOCK // KEPT, "RETRIEVAL": plan.retrieval}
        return cls.zeros(device, S=slots, T=rows, **of_heads, **of_cache)

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
