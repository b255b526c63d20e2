"""Attention over the rows of a tree: each row's bits are those of its path as a chain, whatever else the tree has."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from itertools import product

import pytest
import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.attention.attention import (
    MOST_NODES,
    Attention,
    LayerPages,
    NodeTensors,
    TreeNodes,
    Workspace,
)
from specgate.backends.eagle3.cupy.kernels.attention.fmha_config import FmhaConfig
from specgate.backends.eagle3.cupy.kernels.heads import BLOCK, SCALE_POSITIONS, Heads
from specgate.backends.eagle3.cupy.memory.coded_pages import block_scales, key_codes, outer_of, value_codes
from specgate.backends.eagle3.lib.kv.modes import MODES, KvMode
from specgate.backends.eagle3.lib.rope import cos_sin_table
from specgate.checkpoints.geometry import RopeSpec
from tests.eagle3.cupy import oracles
from tests.eagle3.cupy.kernels.codes.caches import Cache as CodedCache
from tests.eagle3.cupy.kernels.crossed import pairwise
from tests.eagle3.cupy.kernels.device import counted, normal, relative_error, rows_of
from tests.eagle3.cupy.kernels.trees.random_trees import masks_of, random_parents
from tests.eagle3.lib.trees.brute_force import ByHand

CONFIG = FmhaConfig(kv_tile=128, warps=4, stages=2)
POSITIONS = 300


class Cache:
    """Random pages of `slots` slots whose blocks are shuffled, and attention over them."""

    def __init__(self, heads: Heads, slots: int, device: str) -> None:
        self.heads, self.device = heads, device
        self.partial = torch.empty(0)
        self.finished = torch.zeros(slots * MOST_NODES * heads.heads, dtype=torch.int32, device=device)
        self.node_scales = torch.full((slots, heads.kv_heads, MOST_NODES, 2), float("nan"), device=device)
        blocks = slots * heads.max_blocks
        self.scales: Tensor | None = None
        if heads.kv == "bf16":
            self.k = normal(blocks, heads.kv_heads, BLOCK, heads.head_dim, device=device)
            self.v = normal(blocks, heads.kv_heads, heads.head_dim, BLOCK, seed=1, device=device)
        else:
            codes = CodedCache(heads, slots, device, spread=8.0)
            self.k, self.v, self.scales = codes.k_pages, codes.v_pages, codes.scales
        order = torch.randperm(blocks, generator=torch.Generator().manual_seed(0))
        self.table = order.view(slots, -1).int().to(device)
        self.rope = cos_sin_table(RopeSpec("default", 10000.0, heads.head_dim), heads.positions, torch.device(device))

    def rows(self, slot: int, first: int, count: int) -> tuple[Tensor, Tensor]:
        """Return the cached rows from `first` on of a slot: keys and values [count, G, D]; in NVFP4 codes, and behind
        them the scales of their blocks.
        """
        at = torch.arange(first, first + count, device=self.device)
        blocks = self.table[slot].long()[at // BLOCK]
        if self.scales is not None and self.heads.kv == "nvfp4":
            codes = key_codes(self.k[blocks]), value_codes(self.v[blocks])
            scales = block_scales(self.scales[blocks])
            keys, values = (
                torch.cat(both, dim=-1)[range(count), :, at % BLOCK] for both in zip(codes, scales, strict=True)
            )
            return keys, values
        return self.k[blocks, :, at % BLOCK], self.v[blocks, :, :, at % BLOCK]

    def scales_at(self, slot: int, position: int) -> Tensor:
        """Return the scales of a cached position's key and value, [G, 2]."""
        assert self.scales is not None
        return self.scales[int(self.table[slot, position // BLOCK]), :, position % BLOCK // SCALE_POSITIONS]

    def attend(self, qkv: Tensor, kernel: Attention, lengths: Sequence[int], masks: Tensor | None = None) -> Tensor:
        """[S, rows, N·D]. It changes the cache. `partial` becomes what is joined and rounded to that."""
        slots, rows, in_e4m3 = len(lengths), kernel.rows_per_slot, self.heads.kv == "fp8"
        scales = self.node_scales[:, :, : masks.shape[1]].contiguous() if in_e4m3 and masks is not None else None
        work = Workspace(*(torch.full(s, float("nan"), device=self.device) for s in kernel.partial_shapes(slots)))
        out = torch.full((slots * rows, self.heads.width), float("nan"), dtype=torch.bfloat16, device=self.device)
        kernel(
            *(out, qkv.flatten(0, 1).contiguous(), rows_of(range(slots), rows, slots, self.device)),
            *(work, LayerPages(self.k, self.v, self.scales), self.rope),
            None if masks is None else NodeTensors(masks, scales),
            block_table=self.table,
            length=counted(lengths, self.device),
            offset=0,
            sinks=normal(self.heads.heads, scale=4.0, seed=3, device=self.device) if kernel.sinks else None,
            finished=self.finished if kernel.joins else None,
        )
        assert not self.finished.any()
        if scales is not None:
            self.node_scales[:, :, : scales.shape[2]] = scales
        self.partial = work.partial.view(slots, rows, self.heads.heads, kernel.max_chunks, -1)
        return out.view(slots, rows, -1)

    @property
    def pages(self) -> list[Tensor]:
        return [self.k, self.v, *([] if self.scales is None else [self.scales])]

    def copy(self) -> list[Tensor]:
        return [of.clone() for of in self.pages]

    def restored(self, pages: Sequence[Tensor]) -> None:
        for mine, other in zip(self.pages, pages, strict=True):
            mine.copy_(other)


LAYERS = {"all": (None, False), "all, sinks": (None, True), "window": (70, False), "window, sinks": (70, True)}
"""Kinds of layers: the window, and whether there are sinks. A mixture has the second and the fourth by turns."""
SHAPES = {
    "3:1 of 64": ((3, 1, 64), 24, 5),
    "1:1 of 64": ((2, 2, 64), 40, 6),
    "8:1 of 64": ((16, 2, 64), 21, 5),
    "8:1 of 128": ((8, 1, 128), 64, 7),
}
"""Heads, rows and levels of a tree."""


@pytest.mark.parametrize(("shape", "kv", "layer"), pairwise([*product(SHAPES, MODES, LAYERS)]))
def test_every_row_has_the_bits_of_its_path_as_a_chain(device: str, shape: str, kv: KvMode, layer: str) -> None:
    """Behind contexts that end at the edges of scales, key tiles, blocks and chunks; chunks of windows with sinks are
    joined by attention itself, as a mixture's are.
    """
    of_heads, rows, levels = SHAPES[shape]
    window, sinks = LAYERS[layer]
    dice, heads = random.Random(rows), Heads(*of_heads, POSITIONS, kv)
    lengths = [1, 14, 32, 61, 127, 200]
    parents = [random_parents(dice, rows, levels) for _ in lengths]
    masks = torch.tensor([masks_of(p) for p in parents], device=device)
    cache = Cache(heads, len(lengths), device)
    qkv = normal(len(lengths), rows, heads.qkv_width, dtype=torch.float32, device=device)
    qkv *= 4 ** torch.randint(-1, 2, (len(lengths), rows, 1), generator=torch.Generator().manual_seed(1)).to(device)
    before = cache.copy()
    joins = sinks and window is not None
    of_layer = partial(Attention, config=CONFIG, sinks=sinks, may_join=joins)
    tree = of_layer(heads, rows, window, tree=TreeNodes(0, rows, levels))
    assert tree.joins == joins
    got = cache.attend(qkv, tree, lengths, masks)
    assert got.isfinite().all()
    sums = cache.partial
    left = cache.copy()
    chain = of_layer(heads, levels + 1, window)  # what is behind a path's end does not reach it
    for leaves in zip(*(dice.sample(ByHand(p).leaves(), k=min(3, rows)) for p in parents), strict=True):
        paths = [ByHand(p).way(leaf) for leaf, p in zip(leaves, parents, strict=True)]
        cache.restored(before)
        alone = cache.attend(
            torch.stack([qkv[slot, [*path, *[0] * (levels + 1 - len(path))]] for slot, path in enumerate(paths)]),
            chain,
            lengths,
        )
        cached = [cache.rows(slot, lengths[slot], len(path)) for slot, path in enumerate(paths)]
        for slot, (length, path) in enumerate(zip(lengths, paths, strict=True)):
            assert torch.equal(alone[slot, : len(path)], got[slot, path]), (length, path)
            # Rounding hides most of what another order of additions would change: float32 sums do not.
            for depth, node in enumerate(path if not joins else ()):
                first = max(0, length - window + 1) // CONFIG.kv_tile if window else 0
                chunks = (length + depth) // CONFIG.kv_tile - first + 1
                mine, chains = sums[slot, node, :, :chunks], cache.partial[slot, depth, :, :chunks]
                assert torch.equal(mine, chains), (length, path, depth)
            for depth in range(-length % SCALE_POSITIONS, len(path)) if kv == "fp8" else ():
                assert torch.equal(cache.node_scales[slot, :, path[depth]], cache.scales_at(slot, length + depth))
        cache.restored(left)
        for slot, (path, (keys, values)) in enumerate(zip(paths, cached, strict=True)):
            kept, kept_values = cache.rows(slot, lengths[slot], rows)
            assert torch.equal(kept[path], keys) and torch.equal(kept_values[path], values)

    def others() -> list[Tensor]:
        """All that the cache holds beside the tree's rows."""
        rows_of_slots = [
            cache.rows(slot, *part)
            for slot, length in enumerate(lengths)
            for part in ((0, length), (length + rows, POSITIONS - length - rows))
        ]
        outer = [] if cache.scales is None else [outer_of(cache.scales) if kv == "nvfp4" else cache.scales.clone()]
        return [*(of for pair in rows_of_slots for of in pair), *outer]

    behind = others()
    cache.restored(before)
    assert all(torch.equal(*both) for both in zip(behind, others(), strict=True))


@pytest.mark.parametrize("kv", MODES)
def test_levels_drafted_one_after_the_other_see_what_the_levels_before_have_left(device: str, kv: KvMode) -> None:
    """Nodes by level, each level a launch of its own, against all of them in one."""
    shape, lengths, levels = Heads(4, 2, 64, POSITIONS, kv), [5, 31, 62, 126], [3, 4, 4]
    parents = [0, 1, 2, 0, 0, 1, 2, 3, 3, 5, 6]  # the first level's nodes have no node above them
    masks = list[int]()
    for node, parent in enumerate(parents):
        masks.append((masks[parent] if node >= levels[0] else 0) | 1 << node)
    given = torch.tensor([masks] * len(lengths), device=device)
    cache = Cache(shape, len(lengths), device)
    qkv = normal(len(lengths), len(parents), shape.qkv_width, dtype=torch.float32, device=device)
    before = cache.copy()
    together = Attention(shape, len(parents), config=CONFIG, tree=TreeNodes(0, len(parents), 2))
    want = cache.attend(qkv, together, lengths, given)
    left, left_scales = cache.copy(), cache.node_scales.clone()
    cache.restored(before)
    cache.node_scales.fill_(float("nan"))
    first = 0
    for level, count in enumerate(levels):
        kernel = Attention(shape, count, config=CONFIG, tree=TreeNodes(first, len(parents), level))
        got = cache.attend(qkv[:, first : first + count].contiguous(), kernel, lengths, given)
        assert torch.equal(got, want[:, first : first + count])
        first += count
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(cache.pages, left, strict=True))
    assert torch.equal(cache.node_scales.nan_to_num(), left_scales.nan_to_num())


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
            path = ByHand(parents[slot]).way(row)
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
