"""Common parts of the kernels' GPU tests: random operands, poisoned outputs, rows of slots that are partly active."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.device import multiprocessors
from specgate.backends.eagle3.cupy.kernels.heads import BLOCK, Heads
from specgate.backends.eagle3.cupy.kernels.matmul.wgmma_config import unable
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows, Slots
from tests.eagle3.cupy.oracles import relative_error as relative_error

POISON = float("nan")


def needs_wgmma(device: str) -> None:
    """Skip the test where `device` is a GPU that has no such instructions."""
    if device == "cuda" and (reason := unable(multiprocessors())):
        pytest.skip(reason)


def normal(
    *shape: int, dtype: torch.dtype = torch.bfloat16, scale: float = 1.0, seed: int = 0, device: str = "cuda"
) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return (scale * torch.randn(shape, generator=generator)).to(device, dtype)


def integers(below: int, *shape: int, seed: int = 0, device: str = "cuda") -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randint(below, shape, generator=generator).int().to(device)


def poisoned(*shape: int, dtype: torch.dtype = torch.bfloat16, device: str = "cuda") -> Tensor:
    return torch.full(shape, POISON, dtype=dtype, device=device)


def counted(values: Sequence[int], device: str = "cuda") -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


def rows_of(active: Sequence[int], per_slot: int, slots: int | None = None, device: str = "cuda") -> Rows:
    """Rows of `slots` slots (default: as many as are active), of which `active` are. Behind these, too, the list holds
    a slot that exists, as an engine's does: kernels read of it before they know how many are active.
    """
    slots = slots or len(active)
    listed = [*active, *([0] * (slots - len(active)))]
    return Rows(counted(listed, device), counted([len(active)], device), slots, per_slot)


def state(active: Sequence[int], max_rows: int, slots: int, capacity: int = 512, device: str = "cuda") -> Slots:
    made = Slots.allocate(slots, max_rows, capacity, device)
    made.active[: len(active)] = counted(active, device)
    made.active_count[0] = len(active)
    return made


def packed(tokens: Tensor) -> Tensor:
    """Choices (`argmax.cuh`) of `tokens` by a logit of 2.0."""
    return (torch.full_like(tokens, 0xC0000000 - (1 << 32), dtype=torch.int64) << 32) | (0xFFFFFFFF - tokens.long())


def index_of(choices: Tensor) -> Tensor:
    return 0xFFFFFFFF - (choices & 0xFFFFFFFF)


def rotated(heads: Tensor, table: tuple[Tensor, Tensor], position: int) -> Tensor:
    """`heads` float32 [N, D] at `position`, rotated as the kernels do it: in float32, product by product."""
    a, b = heads.chunk(2, dim=-1)
    cosine, sine = (angles[position] for angles in table)
    return torch.cat((a * cosine - b * sine, b * cosine + a * sine), dim=-1)


def paged(heads: Heads, slots: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """A random cache: keys, values [S, G, P, D], the same in k_pages, v_pages of shuffled blocks, and the table."""
    blocks, g, d = heads.max_blocks, heads.kv_heads, heads.head_dim
    keys, values = (normal(slots, g, blocks * BLOCK, d, seed=seed + i) for i in range(2))
    order = torch.randperm(slots * blocks, generator=torch.Generator().manual_seed(seed)).cuda()
    block_table = order.view(slots, blocks).int()
    k_pages, v_pages = poisoned(slots * blocks, g, BLOCK, d), poisoned(slots * blocks, g, d, BLOCK)
    k_pages[order] = keys.view(slots, g, blocks, BLOCK, d).transpose(1, 2).flatten(0, 1)
    v_pages[order] = values.view(slots, g, blocks, BLOCK, d).permute(0, 2, 1, 4, 3).flatten(0, 1)
    return keys, values, k_pages, v_pages, block_table
