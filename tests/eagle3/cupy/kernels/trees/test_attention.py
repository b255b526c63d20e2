"""Attention over the rows of a tree: each row's bits are those of its path as a chain, whatever else the tree has."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.attention.attention import Attention, TreeNodes
from specgate.backends.eagle3.cupy.kernels.attention.fmha_config import FmhaConfig
from specgate.backends.eagle3.cupy.kernels.heads import BLOCK, Heads
from specgate.backends.eagle3.lib.rope import cos_sin_table
from specgate.checkpoints.geometry import RopeSpec
from tests.eagle3.cupy import oracles
from tests.eagle3.cupy.kernels.device import counted, normal, relative_error, rows_of
from tests.eagle3.cupy.kernels.trees.random_trees import masks_of, path_to, random_parents, way_down

CONFIG = FmhaConfig(kv_tile=128, warps=4, stages=2)
POSITIONS = 300


class Cache:
    """Random pages of `slots` slots whose blocks are shuffled, and attention over them."""

    def __init__(self, heads: Heads, slots: int, device: str) -> None:
        self.heads, self.device = heads, device
        self.partial = torch.empty(0)
        blocks = slots * heads.max_blocks
        self.k = normal(blocks, heads.kv_heads, BLOCK, heads.head_dim, device=device)
        self.v = normal(blocks, heads.kv_heads, heads.head_dim, BLOCK, seed=1, device=device)
        order = torch.randperm(blocks, generator=torch.Generator().manual_seed(0))
        self.table = order.view(slots, -1).int().to(device)
        self.rope = cos_sin_table(RopeSpec("default", 10000.0, heads.head_dim), heads.positions, torch.device(device))

    def rows(self, slot: int, first: int, count: int) -> tuple[Tensor, Tensor]:
        """Return the cached rows from `first` on of a slot: keys and values [count, G, D]."""
        at = torch.arange(first, first + count, device=self.device)
        blocks = self.table[slot].long()[at // BLOCK]
        return self.k[blocks, :, at % BLOCK], self.v[blocks, :, :, at % BLOCK]

    def attend(self, qkv: Tensor, kernel: Attention, lengths: Sequence[int], masks: Tensor | None = None) -> Tensor:
        """[S, rows, N·D]. It changes the cache. `partial` becomes what is joined and rounded to that."""
        slots, rows = len(lengths), kernel.rows_per_slot
        partial = tuple(torch.full(s, float("nan"), device=self.device) for s in kernel.partial_shapes(slots))
        out = torch.full((slots * rows, self.heads.width), float("nan"), dtype=torch.bfloat16, device=self.device)
        kernel(
            *(out, (partial[0], partial[1]), self.k, self.v, qkv.flatten(0, 1).contiguous(), self.rope, self.table),
            counted(lengths, self.device),
            rows_of(range(slots), rows, slots, self.device),
            offset=0,
            masks=masks,
        )
        self.partial = partial[0].view(slots, rows, self.heads.heads, kernel.max_chunks, -1)
        return out.view(slots, rows, -1)

    def restored(self, k: Tensor, v: Tensor) -> None:
        self.k.copy_(k)
        self.v.copy_(v)


@pytest.mark.slow("compiles attention as C++")
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "rows", "levels", "window"),
    [
        (8, 2, 64, 12, 4, None),
        (3, 1, 64, 24, 5, None),
        (2, 2, 64, 40, 6, None),
        (8, 1, 128, 64, 7, None),
        (3, 1, 64, 12, 4, 70),
    ],
)
def test_every_row_has_the_bits_of_its_path_as_a_chain(
    device: str, heads: int, kv_heads: int, head_dim: int, rows: int, levels: int, window: int | None
) -> None:
    """Behind contexts that end at the edges of key tiles, blocks and chunks."""
    dice, shape = random.Random(rows), Heads(heads, kv_heads, head_dim, POSITIONS)
    lengths = [1, 29, 63, 124, 127, 200]
    parents = [random_parents(dice, rows, levels) for _ in lengths]
    masks = torch.tensor([masks_of(p) for p in parents], device=device)
    cache = Cache(shape, len(lengths), device)
    qkv = normal(len(lengths), rows, shape.qkv_width, dtype=torch.float32, device=device)
    before = cache.k.clone(), cache.v.clone()
    tree = Attention(shape, rows, window, config=CONFIG, tree=TreeNodes(0, rows, levels))
    got = cache.attend(qkv, tree, lengths, masks)
    assert got.isfinite().all()
    partial = cache.partial
    left = cache.k.clone(), cache.v.clone()
    chain = Attention(shape, levels + 1, window, config=CONFIG)  # what is behind a path's end does not reach it
    for slot, length in enumerate(lengths):
        for leaf in dice.sample(way_down(parents[slot]), k=min(3, rows)):
            path = path_to(leaf, parents[slot])
            cache.restored(*before)
            every = qkv[:, [*path, *[0] * (levels + 1 - len(path))]].contiguous()
            alone = cache.attend(every, chain, lengths)
            assert torch.equal(alone[slot, : len(path)], got[slot, path]), (length, path)
            # Rounding hides most of what another order of additions would change: float32 sums do not.
            for depth, node in enumerate(path):
                first = max(0, length - window + 1) // CONFIG.kv_tile if window else 0
                chunks = (length + depth) // CONFIG.kv_tile - first + 1
                mine, chains = partial[slot, node, :, :chunks], cache.partial[slot, depth, :, :chunks]
                assert torch.equal(mine, chains), (length, path, depth)
            keys, values = cache.rows(slot, length, len(path))
            cache.restored(*left)
            kept, kept_values = cache.rows(slot, length, rows)
            assert torch.equal(kept[path], keys) and torch.equal(kept_values[path], values)
    cache.restored(*left)
    for slot, length in enumerate(lengths):  # nothing else of the cache has changed
        assert torch.equal(cache.rows(slot, 0, length)[0], at(cache, before[0], slot, length))


def at(cache: Cache, k: Tensor, slot: int, count: int) -> Tensor:
    """Keys [count, G, D] of another copy of the pages."""
    other = Cache.__new__(Cache)
    other.device, other.table, other.k, other.v = cache.device, cache.table, k, cache.v
    return other.rows(slot, 0, count)[0]


@pytest.mark.slow("compiles attention as C++")
def test_levels_drafted_one_after_the_other_see_what_the_levels_before_have_left(device: str) -> None:
    """Nodes by level, each level a launch of its own, against all of them in one."""
    shape, lengths, levels = Heads(4, 2, 64, POSITIONS), [5, 62, 126], [3, 4, 4]
    parents = [0, 1, 2, 0, 0, 1, 2, 3, 3, 5, 6]  # the first level's nodes have no node above them
    masks = list[int]()
    for node, parent in enumerate(parents):
        masks.append((masks[parent] if node >= levels[0] else 0) | 1 << node)
    given = torch.tensor([masks] * len(lengths), device=device)
    cache = Cache(shape, len(lengths), device)
    qkv = normal(len(lengths), len(parents), shape.qkv_width, dtype=torch.float32, device=device)
    before = cache.k.clone(), cache.v.clone()
    together = Attention(shape, len(parents), config=CONFIG, tree=TreeNodes(0, len(parents), 2))
    want = cache.attend(qkv, together, lengths, given)
    left = cache.k.clone(), cache.v.clone()
    cache.restored(*before)
    first = 0
    for level, count in enumerate(levels):
        kernel = Attention(shape, count, config=CONFIG, tree=TreeNodes(first, len(parents), level))
        got = cache.attend(qkv[:, first : first + count].contiguous(), kernel, lengths, given)
        assert torch.equal(got, want[:, first : first + count])
        first += count
    assert torch.equal(cache.k, left[0]) and torch.equal(cache.v, left[1])


def test_a_tree_agrees_with_float64_over_what_its_masks_show(device: str) -> None:
    dice, shape, rows, levels = random.Random(1), Heads(8, 2, 64, POSITIONS), 20, 4
    lengths = [40, 125]
    parents = [random_parents(dice, rows, levels) for _ in lengths]
    cache = Cache(shape, len(lengths), device)
    qkv = normal(len(lengths), rows, shape.qkv_width, dtype=torch.float32, device=device)
    committed = [cache.rows(slot, 0, length) for slot, length in enumerate(lengths)]
    masks = torch.tensor([masks_of(p) for p in parents], device=device)
    got = cache.attend(qkv, Attention(shape, rows, config=CONFIG, tree=TreeNodes(0, rows, levels)), lengths, masks)
    want = torch.empty_like(got, dtype=torch.float64)
    for slot, length in enumerate(lengths):
        keys, values = committed[slot]
        for row in range(rows):
            path = path_to(row, parents[slot])
            parts = qkv[slot, path].view(len(path), -1, shape.head_dim)
            angles = [table[length : length + len(path)] for table in cache.rope]
            turned = oracles.rope(parts[:, : shape.heads + shape.kv_heads], *angles)
            k = torch.cat((keys.double(), turned[:, shape.heads :])).transpose(0, 1)
            v = torch.cat((values.double(), parts[:, shape.heads + shape.kv_heads :].double())).transpose(0, 1)
            expected = oracles.attention(turned[-1, : shape.heads], k, v, length + len(path) - 1, None)
            want[slot, row] = expected.flatten()
    assert relative_error(got, want) < 6e-3


def test_rows_that_no_mask_holds_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 64 nodes"):
        Attention(Heads(8, 2, 64, POSITIONS), 40, tree=TreeNodes(30, 70, 3))
