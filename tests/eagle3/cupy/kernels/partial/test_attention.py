"""Attention of partial and full verifications, and the choice of blocks, against brute force and the reference."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.attention.attention import Attention, LayerPages, Workspace
from specgate.backends.eagle3.cupy.kernels.attention.fmha_config import FmhaConfig
from specgate.backends.eagle3.cupy.kernels.attention.kept_blocks import KEPT, KeptBlocks
from specgate.backends.eagle3.cupy.kernels.heads import BLOCK, Heads
from specgate.backends.eagle3.cupy.kernels.partial.launchers import (
    BlockBounds,
    BlockScores,
    ChooseBlocks,
    WideAttention,
)
from specgate.backends.eagle3.reference.partial import block_scores, choose, first_of_window, summaries
from tests.eagle3.cupy.kernels.crossed import crossed
from tests.eagle3.cupy.kernels.device import counted, normal, relative_error, rotated, rows_of
from tests.eagle3.cupy.kernels.trees.test_attention import Cache

POSITIONS = 700
SHAPES = [(8, 2, 64), (3, 1, 64), (8, 1, 128)]


class Paged(Cache):
    """Random pages whose positions are known, and what is written to them behind the slots' lengths."""

    def text(self, slot: int, count: int) -> tuple[Tensor, Tensor]:
        """Keys and values [G, count, D] of a slot, as float64."""
        keys, values = self.rows(slot, 0, count)
        return keys.transpose(0, 1).double(), values.transpose(0, 1).double()

    def turned(self, row: Tensor, position: int) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [N, D], key and value [G, D] of a row of qkv at `position`, the first two rotated."""
        h = self.heads
        parts = row.view(-1, h.head_dim)
        turned = rotated(parts[: h.heads + h.kv_heads], self.rope, position)
        return turned[: h.heads], turned[h.heads :], parts[h.heads + h.kv_heads :]


class Standing(NamedTuple):
    """Where rows stand: of each slot, before its row 0."""

    block_table: Tensor
    length: Tensor
    offset: int = 0


def workspace(kernel: Attention | WideAttention, slots: int, device: str) -> Workspace:
    return Workspace(*(torch.full(shape, float("nan"), device=device) for shape in kernel.partial_shapes(slots)))


def seen_by(q: Tensor, keys: Tensor, values: Tensor, positions: Sequence[int]) -> Tensor:
    """Attention [N, D] in float64 of one row over `positions` of keys and values [G, P, D]."""
    at = torch.tensor(positions)
    group = len(q) // len(keys)
    k, v = (x[:, at].repeat_interleave(group, dim=0) for x in (keys, values))
    shares = torch.softmax((q.double().bfloat16().double()[:, None] * k).sum(-1) / q.shape[1] ** 0.5, dim=1)
    return (shares[..., None] * v).sum(1)


@crossed(sizes=SHAPES, rows=(2, 6), blocks=((2, 5), (0, 0), (1, 16), (3, 2)))
def test_a_partial_pass_sees_what_is_kept_of_each_head_and_all_behind_it(
    device: str, sizes: tuple[int, int, int], rows: int, blocks: tuple[int, int]
) -> None:
    """Behind windows that begin anywhere in a cache block, and lengths that end anywhere in a chunk."""
    (heads, kv_heads, head_dim), (sink, retrieval) = sizes, blocks
    dice, shape, window = random.Random(rows + sink), Heads(heads, kv_heads, head_dim, POSITIONS), 2
    kept = KeptBlocks(sink, retrieval, window, 40)
    lengths, chosen_at = [*range(410, 660, 36), 655], list[int]()
    cache = Paged(shape, len(lengths), device)
    lists = torch.zeros(len(lengths), kv_heads, retrieval, dtype=torch.int32)
    begins = list[int]()
    for slot, length in enumerate(lengths):
        chosen_at.append(length - dice.randrange(25))  # the length at the last full verification
        begins.append(max(chosen_at[-1] // KEPT - window, sink))
        for head in range(kv_heads):
            lists[slot, head] = torch.tensor(sorted(dice.sample(range(sink, begins[-1]), retrieval)))
    dropped = counted([(begin - sink - retrieval) * KEPT for begin in begins], device)
    qkv = normal(len(lengths), rows, shape.qkv_width, dtype=torch.float32, device=device)
    kernel = Attention(shape, rows, config=FmhaConfig(kv_tile=128, warps=4, stages=2), kept=kept)
    out = torch.full((len(lengths) * rows, shape.width), float("nan"), dtype=torch.bfloat16, device=device)
    kernel(
        *(out, qkv.flatten(0, 1), rows_of(range(len(lengths)), rows, len(lengths), device)),
        *(workspace(kernel, len(lengths), device), LayerPages(cache.k, cache.v), cache.rope),
        Standing(cache.table, counted(lengths, device)),
        kept=lists.to(device),
        dropped=dropped,
    )
    for slot, length in enumerate(lengths):
        keys, values = (x.cpu() for x in cache.text(slot, length + rows))
        for row in range(rows):
            q, key, value = (x.cpu() for x in cache.turned(qkv[slot, row], length + row))
            # The row has entered the cache where it stands.
            assert torch.equal(keys[:, length + row], key.bfloat16().double())
            assert torch.equal(values[:, length + row], value.bfloat16().double())
            want = torch.empty(heads, head_dim, dtype=torch.float64)
            for head in range(kv_heads):
                seen = [*range(sink), *lists[slot, head].tolist()]
                at = [b * KEPT + i for b in seen for i in range(KEPT)]
                at += range(begins[slot] * KEPT, length + row + 1)
                of = slice(head * heads // kv_heads, (head + 1) * heads // kv_heads)
                want[of] = seen_by(q[of], keys[head : head + 1], values[head : head + 1], at)
            got = out[slot * rows + row].view(heads, head_dim).cpu()
            assert relative_error(got, want) < 6e-3


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), SHAPES)
@pytest.mark.parametrize(("rows", "number"), [(12, 3), (24, 4), (66, 2)])
def test_a_full_pass_sees_everything_and_leaves_keys_values_and_the_newest_queries(
    device: str, heads: int, kv_heads: int, head_dim: int, rows: int, number: int
) -> None:
    shape = Heads(heads, kv_heads, head_dim, POSITIONS)
    first, config = [0, 1, 31, 63, 127, 130, 300, 600], FmhaConfig(kv_tile=128)
    length = [at + (3 * slot) % (rows - number + 1) for slot, at in enumerate(first)]
    cache, slots = Paged(shape, len(first), device), len(first)
    before = cache.k.clone()
    qkv = normal(slots, rows, shape.qkv_width, dtype=torch.float32, device=device)
    kernel = WideAttention(shape, rows, number, config)
    out = torch.full((slots * rows, shape.width), float("nan"), dtype=torch.bfloat16, device=device)
    queries = torch.zeros(slots, number, heads, head_dim, dtype=torch.bfloat16, device=device)
    kernel(
        *(out, qkv.flatten(0, 1), rows_of(range(slots), rows, slots, device), workspace(kernel, slots, device)),
        *(LayerPages(cache.k, cache.v), cache.rope, Standing(cache.table, counted(length, device))),
        first=counted(first, device),
        asked=queries,
    )
    for slot, begin in enumerate(first):
        keys, values = (x.cpu() for x in cache.text(slot, begin + rows))
        meant = length[slot] - begin + number
        assert out[slot * rows : (slot + 1) * rows].isfinite().all()
        for row in {0, 1, meant // 2, meant - 1}:
            q, key, value = (x.cpu() for x in cache.turned(qkv[slot, row], begin + row))
            assert torch.equal(keys[:, begin + row], key.bfloat16().double())
            assert torch.equal(values[:, begin + row], value.bfloat16().double())
            want = seen_by(q, keys, values, range(begin + row + 1))
            assert relative_error(out[slot * rows + row].view(heads, head_dim).cpu(), want) < 6e-3
            if 0 <= (asks := begin + row - length[slot]) < number:
                assert torch.equal(queries[slot, asks].cpu(), q.bfloat16())
    after = cache.k.clone()
    for slot, begin in enumerate(first):  # what is before the rows, and behind those with a meaning, has not changed
        end = length[slot] + number
        mine = [cache.rows(slot, at, count)[0] for at, count in ((0, begin), (end, POSITIONS - end))]
        cache.k.copy_(before)
        old = [cache.rows(slot, at, count)[0] for at, count in ((0, begin), (end, POSITIONS - end))]
        assert all(torch.equal(one, other) for one, other in zip(mine, old, strict=True))
        cache.k.copy_(after)


class Choosing:
    """Bounds, scores and choices of two layers' random keys."""

    def __init__(self, shape: Heads, kept: KeptBlocks, lengths: Sequence[int], rows: int, device: str) -> None:
        self.shape, self.kept, self.lengths, self.slots, self.layers = shape, kept, lengths, len(lengths), 2
        self.device, blocks = device, self.slots * shape.max_blocks
        self.k_pages = normal(self.layers, blocks, shape.kv_heads, BLOCK, shape.head_dim, device=device)
        order = torch.randperm(blocks, generator=torch.Generator().manual_seed(0))
        self.block_table = order.view(self.slots, -1).int().to(device)
        self.asked = normal(self.layers, self.slots, rows, shape.heads, shape.head_dim, device=device, seed=1)
        of_block = BLOCK // KEPT
        self.bounds = torch.full(
            (*self.k_pages.shape[:3], of_block, 2, shape.head_dim), float("nan"), dtype=torch.bfloat16, device=device
        )
        self.scores = torch.full(
            (self.layers * self.slots, shape.kv_heads, shape.max_blocks * of_block), float("nan"), device=device
        )
        chosen = (self.layers, self.slots, shape.kv_heads, kept.retrieval)
        self.chosen = torch.full(chosen, -1, dtype=torch.int32, device=device)
        self.of = rows_of(range(self.slots), 1, self.slots, device)
        self.blocks, self.rows, self.sizes = blocks, rows, {"LAYERS": self.layers}

    def bound(self, bounded: Sequence[int], lengths: Sequence[int], most: int) -> None:
        kernel = BlockBounds(self.shape, self.kept, self.blocks)
        given = counted(bounded, self.device), counted(lengths, self.device)
        kernel(self.of, self, bounded=given[0], length=given[1], MOST=most)

    def score(self, rows: int) -> None:
        kernel = BlockScores(self.shape, self.kept, self.blocks, self.slots, rows, self.rows)
        kernel(self.of, self, length=counted(self.lengths, self.device))

    def choose(self) -> None:
        kernel = ChooseBlocks(self.shape, self.kept, self.slots)
        kernel(self.of, self, kept=self.chosen, length=counted(self.lengths, self.device))

    def keys(self, layer: int) -> Tensor:
        """[S, G, P, D], by position."""
        return self.k_pages[layer][self.block_table.long()].transpose(1, 2).flatten(2, 3)


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), SHAPES)
@pytest.mark.parametrize("rows", [2, 7])
def test_blocks_are_bounded_and_scored_as_the_reference_does_it(
    device: str, heads: int, kv_heads: int, head_dim: int, rows: int
) -> None:
    """Bounds are made in two goes, as a prompt's and those of the tokens behind it are; they are exact."""
    shape, kept = Heads(heads, kv_heads, head_dim, POSITIONS), KeptBlocks(1, 4, 2, 0)
    made = Choosing(shape, kept, [700, 333, 60, 5, 400], 7, device)
    earlier = [max(0, length - 50) for length in made.lengths]
    ends = first_of_window(torch.tensor(earlier), kept.sink, kept.window)
    made.bound([0] * made.slots, earlier, int(ends.max()))
    made.bound(ends.tolist(), made.lengths, 5)
    made.score(rows)
    for layer in range(made.layers):
        largest, smallest = (x.cpu() for x in summaries(made.keys(layer)))
        wanted = block_scores(made.asked[layer, :, :rows].transpose(1, 2).contiguous().cpu(), largest, smallest)
        for slot, end in enumerate(first_of_window(torch.tensor(made.lengths), kept.sink, kept.window).tolist()):
            for block in range(kept.sink, end):
                of = made.block_table[slot, block * KEPT // BLOCK], block % (BLOCK // KEPT)
                got = made.bounds[layer, int(of[0]), :, of[1]].float().cpu()
                assert torch.equal(got[:, 0], largest[slot, :, block])
                assert torch.equal(got[:, 1], smallest[slot, :, block])
            scores = made.scores[layer * made.slots + slot, :, kept.sink : end].cpu()
            torch.testing.assert_close(scores, wanted[slot, :, kept.sink : end], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("sink", "retrieval", "window"), [(0, 3, 1), (2, 8, 3), (1, 1, 1), (4, 40, 2), (0, 0, 1)])
def test_the_blocks_of_the_largest_scores_are_chosen_and_the_lowest_of_equal_ones(
    device: str, sink: int, retrieval: int, window: int
) -> None:
    """Of scores with many exact ties, negative ones and both zeros, as the reference chooses."""
    shape, dice = Heads(4, 2, 64, POSITIONS), torch.Generator().manual_seed(sink)
    made = Choosing(shape, KeptBlocks(sink, retrieval, window, 0), [700, 650, 333, 60, 5], 1, device)
    made.scores.copy_(torch.randint(-3, 4, made.scores.shape, generator=dice).float() * 0.25)
    made.scores[(made.scores == 0) & (torch.rand(made.scores.shape, generator=dice).to(device) < 0.5)] = -0.0
    made.choose()
    end = first_of_window(torch.tensor(made.lengths), sink, window)
    for layer in range(made.layers):
        of_layer = made.scores[layer * made.slots : (layer + 1) * made.slots].cpu()
        chosen, meant = choose(of_layer, sink, end, retrieval)
        for slot in range(made.slots):
            for head in range(shape.kv_heads):
                want = sorted(chosen[slot, head][meant[slot, head]].tolist())
                assert made.chosen[layer, slot, head].tolist()[: len(want)] == want
                assert made.chosen[layer, slot, head].tolist()[len(want) :] == [-1] * (retrieval - len(want))


def test_a_part_of_anything_but_a_plain_cache_is_refused() -> None:
    kept = KeptBlocks(1, 2, 2, 8)
    with pytest.raises(ValueError, match="a part of the cache is read in bf16 alone, by chains without a window"):
        Attention(Heads(8, 2, 64, POSITIONS, "fp8"), 4, kept=kept)
    with pytest.raises(ValueError, match="without a window"):
        Attention(Heads(8, 2, 64, POSITIONS), 4, 128, kept=kept)
    with pytest.raises(ValueError, match="a cache in nvfp4: wide attention reads keys and values in bf16 alone"):
        WideAttention(Heads(8, 2, 64, POSITIONS, "nvfp4"), 24, 4)
