"""Results of a full verification for the partial ones behind it: bounds of blocks, and the choice of what is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import torch

from specgate.backends.eagle3.cupy.kernels.attention.kept_blocks import KEPT, KeptBlocks
from specgate.backends.eagle3.cupy.kernels.heads import Heads
from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.partial.launchers import BlockBounds, BlockScores, ChooseBlocks
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows
from specgate.backends.eagle3.cupy.memory.buffers import Buffers
from specgate.backends.eagle3.cupy.memory.sizes import Sizes
from specgate.checkpoints.geometry import TargetGeometry

Kind = Literal["plain", "full", "partial"]
"""How a step verifies: over the whole cache, as where nothing else is asked for; over all of it, with the tokens that
only partial verifications have seen, and a new choice of what these read; or over that part.
"""
PLAIN: Final[Kind] = "plain"
FULL: Final[Kind] = "full"
PARTIAL: Final[Kind] = "partial"


class Selection:
    """The kernels behind the last layer of a full verification of spec-`k`, for all layers together."""

    def __init__(self, heads: Heads, sizes: Sizes, k: int) -> None:
        blocks = sizes.kept_of(k)
        self.most = blocks.unseen // KEPT + 2  # blocks that come to lie before the window from one to the next
        self.bounds = BlockBounds(heads, blocks, sizes.blocks)
        self.scores = BlockScores(heads, blocks, sizes.blocks, sizes.slots, k + 1, sizes.max_rows)
        self.choose = ChooseBlocks(heads, blocks, sizes.slots)

    def kernels(self) -> Mapping[str, Kernel]:
        """Name → launcher, in stream order."""
        return {"bounds": self.bounds, "scores": self.scores, "choose": self.choose}

    def __call__(self, b: Buffers, rows: Rows) -> None:
        """Leave the blocks that each layer, slot and key/value head retrieves in `b.partial.kept`."""
        assert b.partial is not None
        groups = rows, b.partial, b.slots, b.kv
        self.bounds(*groups, k_pages=b.target.pages.k, MOST=self.most)
        self.scores(*groups)
        self.choose(*groups)


def bound_prompts(b: Buffers, target: TargetGeometry, sizes: Sizes, lengths: Sequence[int]) -> None:
    """Bounds of the blocks of prompts of these lengths, which are in the cache, as far as they lie before the window.
    It copies from the host: never within a decode run.
    """
    assert b.partial is not None and sizes.partial is not None
    plan, device, count = sizes.partial, b.slots.length.device, len(lengths)

    def on_device(values: Sequence[int]) -> torch.Tensor:
        return torch.tensor(list(values), dtype=torch.int32).to(device)

    most = max(map(plan.first_of_window, lengths))
    if not most:
        return
    kernel = BlockBounds(sizes.heads(target), KeptBlocks(plan.sink, plan.retrieval, plan.window, 0), sizes.blocks)
    rows = Rows(on_device(range(count)), on_device([count]), count, 1)
    length, none = on_device(lengths), on_device([0] * count)
    kernel(rows, b.partial, b.kv, k_pages=b.target.pages.k, bounded=none, length=length, MOST=most)
