"""Attention over a cache in E4M3: on a CPU as C++, and on a GPU. The reference engine's plane says what is cached."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from specgate.backends.cupy_eagle3.bench import oracles
from specgate.backends.cupy_eagle3.kernels.attention.attention import Attention, TreeNodes
from specgate.backends.cupy_eagle3.kernels.attention.fmha_config import FmhaConfig
from specgate.backends.cupy_eagle3.kernels.heads import BLOCK, SCALE_POSITIONS, Heads
from specgate.backends.reference.kv.planes import Fp8Plane
from specgate.eagle3.geometry import RopeSpec
from specgate.eagle3.kv.modes import FP8_POSITIONS, position_bytes
from specgate.eagle3.rope import cos_sin_table
from tests.backends.cupy_eagle3.kernels.device import (
    counted,
    normal,
    poisoned,
    relative_error,
    rotated,
    rows_of,
)

POSITIONS = 400
CONFIG = FmhaConfig(128, 2, 3)
EDGES = [0, 1, 14, 15, 16, 61, 127, 250]
HEADS = [(4, 2, 128), (9, 3, 64), (8, 1, 64)]
ROUNDED = 1e-3
"""Of queries and probabilities in float16."""


class Cache:
    """A random cache in E4M3 of `slots` slots, and attention over it. `keys`, `values`: what it should hold."""

    def __init__(self, heads: Heads, slots: int, device: str, *, spread: float = 1.0, seed: int = 0) -> None:
        """`spread`: by how much values differ in size from position to position."""
        self.heads, self.slots, self.device = heads, slots, device
        g, d, length = heads.kv_heads, heads.head_dim, heads.max_blocks * BLOCK
        sizes = spread ** torch.linspace(-1, 1, length)[:, None, None]
        self.keys, self.values = (plane(name, slots, heads, device) for name in ("keys", "values"))
        for s, (held, scale) in enumerate(((self.keys, 1.0), (self.values, sizes))):
            rows = normal(slots, length, g, d, dtype=torch.float32, seed=seed + s, device=device)
            held.write(torch.arange(length, device=device).expand(slots, -1), rows * torch.as_tensor(scale).to(device))
        order = torch.randperm(slots * heads.max_blocks, generator=torch.Generator().manual_seed(seed)).to(device)
        self.block_table = order.view(slots, -1).int()
        blocks = slots * heads.max_blocks
        self.k_pages = torch.zeros(blocks, g, BLOCK, d, dtype=torch.uint8, device=device)
        self.v_pages = torch.zeros(blocks, g, d, BLOCK, dtype=torch.uint8, device=device)
        self.scales = torch.zeros(blocks, g, BLOCK // SCALE_POSITIONS, 2, device=device)
        codes = [held.codes.view(slots, g, -1, BLOCK, d).transpose(1, 2) for held in (self.keys, self.values)]
        self.k_pages[order] = codes[0].flatten(0, 1)
        self.v_pages[order] = codes[1].transpose(-1, -2).flatten(0, 1)
        for i, held in enumerate((self.keys, self.values)):
            of_blocks = held.scales.view(slots, g, -1, BLOCK // SCALE_POSITIONS).transpose(1, 2)
            self.scales[order, ..., i] = of_blocks.flatten(0, 1)
        self.rope = cos_sin_table(RopeSpec("default", 10000.0, d), heads.positions, device)

    def qkv(self, rows: int, seed: int = 0, scale: float = 1.0) -> Tensor:
        return normal(rows, self.heads.qkv_width, dtype=torch.float32, seed=seed, scale=scale, device=self.device)

    def attend(
        self,
        qkv: Tensor,
        positions: Sequence[int],
        rows: int,
        window: int | None = None,
        *,
        counts: Sequence[int] | None = None,
        sinks: Tensor | None = None,
        config: FmhaConfig = CONFIG,
    ) -> Tensor:
        """Row t of slot s stands at positions[s] + t; with `counts`, the last of counts[s] rows stands at positions[s],
        and it alone asks.
        """
        query_rows, slots = 1 if counts else rows, len(positions)
        kernel = Attention(self.heads, query_rows, window, appended=rows, config=config, sinks=sinks is not None)
        outputs, stats = (
            poisoned(*shape, dtype=torch.float32, device=self.device) for shape in kernel.partial_shapes(slots)
        )
        out = poisoned(slots * query_rows, self.heads.width, device=self.device)
        kernel(
            *(out, (outputs, stats), self.k_pages, self.v_pages, qkv, self.rope, self.block_table),
            counted([p - 3 for p in positions], self.device),
            rows_of(range(slots), query_rows, slots, self.device),
            offset=3,
            counts=counted(counts, self.device) if counts else None,
            sinks=sinks,
            scales=self.scales,
        )
        return out

    def append(self, qkv: Tensor, positions: Sequence[int], rows: int, counts: Sequence[int] | None = None) -> Tensor:
        """The rows of every slot into what the cache should hold; their rotated queries, float32 [S, rows, N, D]."""
        n, g, d = self.heads.heads, self.heads.kv_heads, self.heads.head_dim
        queries = []
        for s, position in enumerate(positions):
            count = counts[s] if counts else rows
            first = position - count + 1 if counts else position
            given = [qkv[s * rows + t].view(-1, d) for t in range(count)]
            turned = [rotated(heads[: n + g], self.rope, first + t) for t, heads in enumerate(given)]
            at = torch.arange(first, first + count, device=self.device)[None]
            self.keys.slots(s, s + 1).write(at, torch.stack([heads[n:] for heads in turned])[None])
            self.values.slots(s, s + 1).write(at, torch.stack([heads[n + g :] for heads in given])[None])
            queries.append(torch.stack([heads[:n] for heads in (turned[-1:] if counts else turned)]))
        return torch.stack(queries)

    def oracle(
        self, queries: Tensor, positions: Sequence[int], window: int | None = None, sinks: Tensor | None = None
    ) -> Tensor:
        length = self.heads.max_blocks * BLOCK
        keys, values = (held.read(0, length, torch.float32) for held in (self.keys, self.values))
        return torch.stack(
            [
                oracles.attention(query, keys[s], values[s], p + t, window, sinks).flatten()
                for s, p in enumerate(positions)
                for t, query in enumerate(queries[s])
            ]
        )

    def holds_what_it_should(self) -> bool:
        """Codes and scales, bit for bit, of every position of every slot."""
        table = self.block_table.long()
        keys, values = self.k_pages[table].transpose(1, 2), self.v_pages[table].permute(0, 2, 1, 4, 3)
        scales = self.scales[table].permute(4, 0, 2, 1, 3).flatten(3)
        return (
            torch.equal(keys.flatten(2, 3), self.keys.codes)
            and torch.equal(values.flatten(2, 3), self.values.codes)
            and torch.equal(scales[0], self.keys.scales)
            and torch.equal(scales[1], self.values.scales)
        )


def plane(name: str, slots: int, heads: Heads, device: str) -> Fp8Plane:
    shape = (slots, heads.kv_heads, heads.max_blocks * BLOCK, heads.head_dim)
    codes = torch.zeros(shape, dtype=torch.uint8, device=device)
    return Fp8Plane(name, codes, torch.ones(*shape[:2], shape[2] // SCALE_POSITIONS, device=device))


def heads_of(heads: int, kv_heads: int, head_dim: int, positions: int = POSITIONS) -> Heads:
    return Heads(heads, kv_heads, head_dim, positions, fp8=True)


def test_the_kernels_and_the_format_agree_on_sizes() -> None:
    assert SCALE_POSITIONS == FP8_POSITIONS
    for kv_heads, head_dim in ((8, 128), (3, 64)):
        for fp8, mode in ((False, "bf16"), (True, "fp8")):
            of_kernels = Heads(kv_heads, kv_heads, head_dim, 64, fp8=fp8).position_bytes
            assert math.ceil(of_kernels) == position_bytes(mode, kv_heads, head_dim, 2)  # type: ignore[arg-type]


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), HEADS)
@pytest.mark.parametrize("rows", [1, 4, 7])
def test_it_agrees_with_float64_over_what_the_reference_engine_would_have_cached(
    device: str, heads: int, kv_heads: int, head_dim: int, rows: int
) -> None:
    cache = Cache(heads_of(heads, kv_heads, head_dim), len(EDGES), device)
    qkv = cache.qkv(len(EDGES) * rows)
    got = cache.attend(qkv, EDGES, rows)
    queries = cache.append(qkv, EDGES, rows)
    assert cache.holds_what_it_should()
    assert relative_error(got, cache.oracle(queries, EDGES)) < ROUNDED + 2e-3  # what leaves is bfloat16


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), HEADS)
@pytest.mark.parametrize("window", [None, 100])
def test_a_rows_bits_do_not_depend_on_the_rows_beside_it(
    device: str, heads: int, kv_heads: int, head_dim: int, window: int | None
) -> None:
    """Positions 61 + 7 and 127 + 7 lie in other scales' blocks than the rows before them."""
    sizes, most = heads_of(heads, kv_heads, head_dim), 8
    together = Cache(sizes, len(EDGES), device)
    qkv = together.qkv(len(EDGES) * most).view(len(EDGES), most, -1)
    whole = together.attend(qkv.flatten(0, 1), EDGES, most, window).view(len(EDGES), most, -1)
    for rows in (1, 3):
        apart = Cache(sizes, len(EDGES), device)
        for first in range(0, most - rows + 1, rows):
            part = qkv[:, first : first + rows].flatten(0, 1).contiguous()
            got = apart.attend(part, [p + first for p in EDGES], rows, window)
            assert torch.equal(got.view(len(EDGES), rows, -1), whole[:, first : first + rows])
    for of in ("k_pages", "v_pages", "scales"):
        apart = Cache(sizes, len(EDGES), device)
        for first in range(most):
            apart.attend(qkv[:, first].contiguous(), [p + first for p in EDGES], 1, window)
        assert torch.equal(getattr(apart, of), getattr(together, of))


def test_rejected_rows_leave_no_trace(device: str) -> None:
    """Large ones, which would have other scales, at the first position of a block and behind it."""
    sizes, positions = heads_of(4, 2, 64), [14, 15, 16, 17, 60]
    with_drafts, plain = Cache(sizes, 5, device), Cache(sizes, 5, device)
    drafts = with_drafts.qkv(5 * 4, scale=300.0, seed=5)
    qkv = plain.qkv(5 * 4, seed=1).view(5, 4, -1)
    drafts.view(5, 4, -1)[:, 0] = qkv[:, 0]  # accepted; the other three are not
    first = with_drafts.attend(drafts, positions, 4).view(5, 4, -1)[:, 0]
    assert torch.equal(first, plain.attend(qkv[:, 0].contiguous(), positions, 1))
    then = [p + 1 for p in positions]
    rest = qkv[:, 1:].flatten(0, 1).contiguous()
    got, want = (cache.attend(rest, then, 3) for cache in (with_drafts, plain))
    assert torch.equal(got, want)
    plain.append(qkv.flatten(0, 1), positions, 4)
    assert plain.holds_what_it_should()


@pytest.mark.parametrize("window", [None, 70])
def test_an_extension_caches_all_its_rows_and_asks_with_the_newest(device: str, window: int | None) -> None:
    cache, positions, counts = Cache(heads_of(9, 3, 64), 4, device), [5, 129, 150, 64], [3, 6, 1, 4]
    qkv = cache.qkv(4 * 6)
    got = cache.attend(qkv, positions, 6, window, counts=counts)
    queries = cache.append(qkv, positions, 6, counts)
    assert cache.holds_what_it_should()
    assert relative_error(got, cache.oracle(queries, positions, window)) < ROUNDED + 2e-3


@pytest.mark.parametrize("window", [1, 17, 64, 130])
def test_a_window_hides_what_is_older_and_a_sink_takes_its_share(device: str, window: int) -> None:
    cache = Cache(heads_of(8, 1, 64), len(EDGES), device)
    sinks = normal(8, scale=4.0, seed=3, device=device)
    qkv = cache.qkv(len(EDGES) * 2)
    got = cache.attend(qkv, EDGES, 2, window, sinks=sinks)
    want = cache.oracle(cache.append(qkv, EDGES, 2), EDGES, window, sinks)
    assert relative_error(got, want) < ROUNDED + 2e-3


def test_values_of_very_different_sizes_keep_their_precision(device: str) -> None:
    """From 2^-40 to 2^40, and beside them some that are zero, whose scale is one."""
    cache = Cache(heads_of(4, 2, 64), 2, device, spread=2.0**40)
    zeros = torch.zeros(2, BLOCK, 2, 64, device=device)
    at = torch.arange(BLOCK, 2 * BLOCK, device=device).expand(2, -1)
    cache.values.write(at, zeros)
    block = cache.block_table[:, 1].long()
    cache.v_pages[block] = 0
    cache.scales[block, ..., 1] = 1.0
    assert cache.holds_what_it_should()
    for positions in ([70, 100], [20, 50], [300, 200]):
        qkv = cache.qkv(2, scale=1.0)
        qkv[:, -2 * 64 :] *= 2.0**-30 if max(positions) < 200 else 1.0
        got = cache.attend(qkv, positions, 1)
        want = cache.oracle(cache.append(qkv, positions, 1), positions)
        assert relative_error(got, want) < ROUNDED + 2e-3


@pytest.mark.parametrize("spoiled", [float("nan"), float("inf")])
@pytest.mark.parametrize("part", [0, 1, 2], ids=["query", "key", "value"])
def test_what_is_not_finite_comes_to_light(device: str, spoiled: float, part: int) -> None:
    cache = Cache(heads_of(1, 1, 64), 2, device)
    qkv = cache.qkv(2)
    qkv[1, 64 * part + 5] = spoiled
    got = cache.attend(qkv, [32, 37], 1)
    assert got[0].isfinite().all() and not got[1].isfinite().all()


@pytest.mark.parametrize("scale", [0.0, float("inf"), float("nan"), -1.0])
@pytest.mark.parametrize("kind", [0, 1], ids=["keys", "values"])
def test_a_scale_that_nothing_of_ours_has_written_comes_to_light(device: str, scale: float, kind: int) -> None:
    cache = Cache(heads_of(1, 1, 64), 2, device)
    cache.scales[cache.block_table[1, 1].long(), 0, 2, kind] = scale
    got = cache.attend(cache.qkv(2), [200, 200], 1)
    assert got[0].isfinite().all() and got[1].isnan().all()


@pytest.mark.parametrize("config", [FmhaConfig(64, 2, 1), FmhaConfig(192, 4, 2), FmhaConfig(256, 8, 8)])
def test_every_way_to_cut_it_agrees_with_float64(device: str, config: FmhaConfig) -> None:
    cache = Cache(heads_of(9, 3, 64), len(EDGES), device)
    qkv = cache.qkv(len(EDGES) * 4)
    got = cache.attend(qkv, EDGES, 4, config=config)
    assert relative_error(got, cache.oracle(cache.append(qkv, EDGES, 4), EDGES)) < ROUNDED + 2e-3


def test_trees_and_caches_of_another_format_are_refused() -> None:
    with pytest.raises(ValueError, match="a tree over a cache in fp8"):
        Attention(heads_of(4, 2, 64), 5, tree=TreeNodes(0, 5, 3))
    cache = Cache(heads_of(4, 2, 64), 1, "cpu")
    cache.k_pages = cache.k_pages.bfloat16()
    with pytest.raises(ValueError, match=r"k_pages: torch.bfloat16.*a contiguous torch.uint8"):
        cache.attend(cache.qkv(1), [3], 1)


LONG = 2200


@pytest.mark.gpu
@pytest.mark.parametrize("heads", [heads_of(32, 8, 128, LONG), heads_of(9, 3, 64, LONG)], ids=["128", "64"])
@pytest.mark.parametrize(
    "config", (*FmhaConfig.candidates(Heads(32, 8, 128, LONG)), FmhaConfig(512, 4, 1), FmhaConfig(256, 2, 8)), ids=str
)
@torch.inference_mode()
def test_every_configuration_agrees_with_float64_and_with_itself(config: FmhaConfig, heads: Heads) -> None:
    positions = [0, 15, 31, BLOCK, 510, 511, 512, 1023, 1024, 2047, 2150]
    cache = Cache(heads, len(positions), "cuda")
    qkv = cache.qkv(len(positions) * 4)
    got = cache.attend(qkv, positions, 4, config=config)
    queries = cache.append(qkv, positions, 4)
    assert cache.holds_what_it_should()
    assert relative_error(got, cache.oracle(queries, positions)) < ROUNDED + 2e-3
    alone = cache.attend(qkv[::4].contiguous(), positions, 1, config=config)
    assert torch.equal(alone, got[::4])
