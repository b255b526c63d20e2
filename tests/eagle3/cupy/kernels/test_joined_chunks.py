"""Attention that joins the chunks of a row itself: on a CPU as C++, and on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.attention import attention
from specgate.backends.eagle3.cupy.kernels.attention.attention import Attention, LayerPages, Workspace
from specgate.backends.eagle3.cupy.kernels.attention.fmha_config import FmhaConfig
from specgate.backends.eagle3.cupy.kernels.heads import BLOCK, Heads
from specgate.backends.eagle3.lib.rope import cos_sin_table
from specgate.checkpoints.geometry import RopeSpec
from tests.eagle3.cupy.kernels.crossed import crossed
from tests.eagle3.cupy.kernels.device import counted, normal, poisoned, rows_of

POSITIONS, CHUNK = 448, 2 * BLOCK
EDGES = [0, 40, CHUNK - 3, CHUNK - 1, CHUNK, 2 * CHUNK - 2, 3 * CHUNK + 7, POSITIONS - 8]


class Cache:
    def __init__(self, heads: Heads, device: str) -> None:
        self.heads, self.device, blocks = heads, device, len(EDGES) * heads.max_blocks
        shape = blocks, heads.kv_heads, BLOCK, heads.head_dim
        self.k_pages = normal(*shape, seed=1, device=device)
        self.v_pages = normal(*shape, seed=2, device=device).transpose(2, 3).contiguous()
        order = torch.randperm(blocks, generator=torch.Generator().manual_seed(0))
        self.table = order.view(len(EDGES), -1).int().to(device)
        self.rope = cos_sin_table(RopeSpec("default", 10000.0, heads.head_dim), heads.positions, device)

    def attend(self, kernel: Attention, qkv: Tensor, rows: int, active: Sequence[int]) -> Tensor:
        """Twice, on copies of the cache: whoever counts the blocks of a row must leave a clean count."""
        shapes = kernel.partial_shapes(len(EDGES))
        empty = partial(poisoned, device=self.device)
        finished = torch.zeros(len(EDGES) * rows * self.heads.heads, dtype=torch.int32, device=self.device)
        values = []
        for _ in range(2):
            values.append(empty(len(EDGES) * rows, self.heads.width))
            kernel(
                *(values[-1], qkv, rows_of(active, rows, len(EDGES), self.device)),
                Workspace(*(empty(*shape, dtype=torch.float32) for shape in shapes)),
                LayerPages(self.k_pages.clone(), self.v_pages.clone()),
                self.rope,
                block_table=self.table,
                length=counted([p - 3 for p in EDGES], self.device),
                offset=3,
                sinks=normal(self.heads.heads, scale=4.0, seed=3, device=self.device) if kernel.sinks else None,
                finished=finished if kernel.joins else None,
            )
        assert not finished.any() and torch.equal(values[0].view(torch.int16), values[1].view(torch.int16))
        return values[0]


@crossed(
    heads=(Heads(16, 2, 64, POSITIONS), Heads(9, 3, 64, POSITIONS), Heads(4, 1, 128, POSITIONS)),
    window=(None, 100),
    sinks=(True, False),
    rows=(1, 4),
)
def test_a_row_whose_chunks_attention_joins_has_the_bits_that_a_kernel_of_its_own_gives_it(
    device: str, heads: Heads, window: int | None, sinks: bool, rows: int
) -> None:
    cache, config = Cache(heads, device), FmhaConfig(CHUNK, 4, 2)
    qkv = normal(len(EDGES) * rows, heads.qkv_width, dtype=torch.float32, device=device)
    apart, joined = (Attention(heads, rows, window, config=config, sinks=sinks, may_join=may) for may in (False, True))
    assert joined.joins and not apart.joins
    for active in (range(len(EDGES)), [5, 2], []):
        want, got = (cache.attend(kernel, qkv, rows, active) for kernel in (apart, joined))
        assert torch.equal(got.view(torch.int16), want.view(torch.int16))
        assert got[: len(active) * rows].isfinite().all() and got[len(active) * rows :].isnan().all()


def test_many_chunks_have_a_kernel_that_joins_them() -> None:
    few, many = (Heads(8, 2, 64, n * CHUNK) for n in (attention.MOST_JOINED, attention.MOST_JOINED + 1))
    config = FmhaConfig(CHUNK, 4, 2)
    assert [Attention(heads, 1, config=config, may_join=True).joins for heads in (few, many)] == [True, False]
    assert Attention(many, 1, 100, config=config, may_join=True).joins  # a window sees few of them
