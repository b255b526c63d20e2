from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.attention.attention import STATISTICS, Attention, LayerPages, Workspace
from specgate.backends.eagle3.cupy.kernels.attention.fmha_config import CANDIDATES, FmhaConfig
from specgate.backends.eagle3.cupy.kernels.heads import BLOCK, Heads
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import Epilogue, MatmulRows
from specgate.backends.eagle3.lib.rope import cos_sin_table
from specgate.checkpoints.geometry import RopeSpec
from tests.eagle3.cupy import oracles
from tests.eagle3.cupy.kernels.codes.caches import Attending
from tests.eagle3.cupy.kernels.device import counted, normal, paged, poisoned, relative_error, rows_of

pytestmark = pytest.mark.gpu

POSITIONS = 2200
HEADS = [(32, 8, 128), (9, 3, 64), (8, 8, 64), (8, 1, 128), (14, 2, 64), (6, 1, 64), (10, 2, 128), (16, 2, 64)]
CHUNK = FmhaConfig().kv_tile
EDGES = [0, 1, 31, 32, BLOCK - 1, BLOCK, CHUNK - 2, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK - 1, 2047, 2150]

SHORT_AND_LONG_RINGS = [(512, 4, 1), (512, 4, 2), (256, 2, 8)]


class Cache(Attending):
    """A random cache of `slots` slots in bfloat16. `keys`, `values` [S, G, P, D]: what it should hold."""

    device = "cuda"

    def __init__(self, heads: Heads, slots: int) -> None:
        self.heads = heads
        self.keys, self.values, self.k_pages, self.v_pages, self.block_table = paged(heads, slots)
        self.rope = cos_sin_table(RopeSpec("default", 10000.0, heads.head_dim), heads.positions, "cuda")

    def append(self, qkv: Tensor, positions: Sequence[int], rows: int, counts: Sequence[int] | None = None) -> Tensor:
        """The oracle's cache with the rows of every slot in it; their rotated queries, float64 [S, rows, N, D]."""
        n, g = self.heads.heads, self.heads.kv_heads
        turned = []
        for s, position in enumerate(positions):
            for t in range(counts[s] if counts else rows):
                at = position + t - (counts[s] - 1 if counts else 0)
                heads = qkv[s * rows + t].view(-1, self.heads.head_dim)
                rotated = oracles.rope(heads[: n + g], self.rope[0][at], self.rope[1][at])
                self.keys[s, :, at], self.values[s, :, at] = rotated[n:].bfloat16(), heads[n + g :].bfloat16()
                if not counts or t == counts[s] - 1:
                    turned.append(rotated[:n])
        both = torch.stack(turned)
        return both.view(len(positions), -1, *both.shape[1:])

    def held(self) -> tuple[Tensor, Tensor]:
        return self.keys, self.values


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), HEADS)
@pytest.mark.parametrize("rows", [1, 2, 4, 6, 8])
def test_attention_over_paged_keys_and_values_agrees_with_float64(
    heads: int, kv_heads: int, head_dim: int, rows: int
) -> None:
    cache = Cache(Heads(heads, kv_heads, head_dim, POSITIONS), len(EDGES))
    qkv = cache.qkv(len(EDGES) * rows)
    got = cache.attend(qkv, EDGES, rows)
    assert relative_error(got, cache.oracle(cache.append(qkv, EDGES, rows), EDGES)) < 5e-3


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), HEADS[:3])
@pytest.mark.parametrize("counts", [None, [1, 5, 4, 2]])
def test_new_keys_and_values_enter_the_cache_where_they_stand_and_nothing_else_changes(
    heads: int, kv_heads: int, head_dim: int, counts: list[int] | None
) -> None:
    cache, positions = Cache(Heads(heads, kv_heads, head_dim, POSITIONS), 4), [4, BLOCK + 2, CHUNK + 1, 2000]
    qkv = cache.qkv(4 * 5)
    got = cache.attend(qkv, positions, 5, counts=counts)
    queries = cache.append(qkv, positions, 5, counts)
    assert relative_error(got, cache.oracle(queries, positions)) < 5e-3
    keys, values = cache.k_pages[cache.block_table.long()], cache.v_pages[cache.block_table.long()]
    keys = keys.transpose(1, 2).flatten(2, 3)  # [S, G, P, D]
    values = values.permute(0, 2, 1, 4, 3).flatten(2, 3)
    new = torch.zeros(4, keys.shape[2], dtype=torch.bool, device="cuda")
    for s, position in enumerate(positions):
        first = position - counts[s] + 1 if counts else position
        new[s, first : first + (counts[s] if counts else 5)] = True
    fresh = new[:, None, :, None].expand_as(keys)
    assert relative_error(keys[fresh], cache.keys[fresh]) < 3e-3
    assert torch.equal(keys[~fresh], cache.keys[~fresh])
    assert torch.equal(values, cache.values)


@pytest.mark.parametrize("window", [1, 5, 64, 512, 700])
def test_a_window_hides_what_is_older(window: int) -> None:
    cache = Cache(Heads(9, 3, 64, POSITIONS), len(EDGES))
    for rows in (1, 4):
        qkv = cache.qkv(len(EDGES) * rows)
        got = cache.attend(qkv, EDGES, rows, window)
        assert relative_error(got, cache.oracle(cache.append(qkv, EDGES, rows), EDGES, window)) < 5e-3


@pytest.mark.parametrize("window", [6, 512])
def test_an_extension_attends_with_its_newest_row_within_the_window(window: int) -> None:
    cache, positions, counts = Cache(Heads(9, 3, 64, POSITIONS), 4), [5, CHUNK + 1, 1500, 2048], [3, 6, 1, 4]
    qkv = cache.qkv(4 * 6)
    got = cache.attend(qkv, positions, 6, window, counts=counts)
    assert relative_error(got, cache.oracle(cache.append(qkv, positions, 6, counts), positions, window)) < 5e-3


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), HEADS)
# 868: rows from 4 on see one group less of a warp's last three; pairs would shift if they did not lie at fixed places.
@pytest.mark.parametrize("window", [None, 700, 868])
def test_a_rows_bits_do_not_depend_on_the_rows_beside_it(
    heads: int, kv_heads: int, head_dim: int, window: int | None
) -> None:
    cache = Cache(Heads(heads, kv_heads, head_dim, POSITIONS), len(EDGES))
    config = FmhaConfig(512, 4, 3)
    qkv = cache.qkv(len(EDGES) * 8).view(len(EDGES), 8, -1)
    whole = cache.attend(qkv.flatten(0, 1), EDGES, 8, window, config=config).view(len(EDGES), 8, -1)
    for rows in (1, 2, 3, 4, 5, 6):
        for first in (0, 8 - rows):
            part = qkv[:, first : first + rows].flatten(0, 1).contiguous()
            got = cache.attend(part, [p + first for p in EDGES], rows, window, config=config)
            assert torch.equal(got.view(len(EDGES), rows, -1), whole[:, first : first + rows])


@pytest.mark.parametrize("window", [None, 32, 128])
@pytest.mark.parametrize("rows", [1, 4, 8])
def test_a_sink_takes_its_share_of_the_softmax_and_a_rows_bits_are_its_own(window: int | None, rows: int) -> None:
    cache = Cache(Heads(16, 2, 64, POSITIONS), len(EDGES))
    sinks = normal(16, scale=4.0, seed=3)  # from next to nothing to nearly all
    qkv = cache.qkv(len(EDGES) * rows)
    got = cache.attend(qkv, EDGES, rows, window, sinks=sinks)
    want = cache.oracle(cache.append(qkv, EDGES, rows), EDGES, window, sinks)
    assert relative_error(got, want) < 5e-3
    assert relative_error(got, cache.oracle(cache.append(qkv, EDGES, rows), EDGES, window)) > 0.1
    for row in range(rows):
        part = qkv.view(len(EDGES), rows, -1)[:, row].contiguous()
        alone = cache.attend(part, [p + row for p in EDGES], 1, window, sinks=sinks)
        assert torch.equal(alone, got.view(len(EDGES), rows, -1)[:, row])


@pytest.mark.parametrize("heads", [Heads(32, 8, 128, POSITIONS), Heads(9, 3, 64, POSITIONS)], ids=["128", "64"])
@pytest.mark.parametrize("config", (*CANDIDATES, *(FmhaConfig(*cut) for cut in SHORT_AND_LONG_RINGS)))
def test_every_configuration_agrees_with_float64_and_with_itself(config: FmhaConfig, heads: Heads) -> None:
    cache = Cache(heads, len(EDGES))
    qkv = cache.qkv(len(EDGES) * 4)
    got = cache.attend(qkv, EDGES, 4, config=config)
    assert relative_error(got, cache.oracle(cache.append(qkv, EDGES, 4), EDGES)) < 5e-3
    alone = cache.attend(qkv[::4].contiguous(), EDGES, 1, config=config)
    assert torch.equal(alone, got[::4])


def test_statistics_count_every_tile_once() -> None:
    cache, positions = Cache(Heads(9, 3, 64, POSITIONS), 3), [40, CHUNK + 100, 2150]
    statistics = torch.zeros(4, dtype=torch.int32, device="cuda")
    cache.attend(cache.qkv(12), positions, 4, 600, statistics=statistics)
    counts = dict(zip(STATISTICS, statistics.tolist(), strict=True))
    launched = Attention(cache.heads, 4, 600).max_chunks * 3 * 3
    assert counts["total"] == launched * CHUNK // 32
    assert counts["total"] == counts["span_empty"] + counts["mask_empty"] + counts["executed"]
    # By hand: rows 0 … 3 of a slot see positions from (first row's - 599) to the last row's, in whole tiles of 32.
    seen = [(p + 3) // 32 - max(0, p - 599) // 32 + 1 for p in positions]
    assert counts["executed"] == 3 * sum(seen)


def test_slots_that_are_done_cost_nothing_and_change_nothing() -> None:
    cache = Cache(Heads(9, 3, 64, POSITIONS), 4)
    qkv, positions = cache.qkv(16), [700, 100, 1500, 3]
    everyone = cache.attend(qkv, positions, 4)
    # Slots 1 and 3 go on: their rows are packed first.
    packed = torch.cat((qkv[4:8], qkv[12:16], qkv[:8]))
    got = cache.attend(packed, positions, 4, active=[1, 3])
    assert torch.equal(got[:8], torch.cat((everyone[4:8], everyone[12:16])))
    assert got[8:].isnan().all()


def test_a_slot_among_idle_ones_waits_for_its_queries() -> None:
    """The blocks of idle slots end at once: the kernel must not end with them, before the product that feeds it."""
    heads, positions, k = Heads(9, 3, 64, POSITIONS), [700, 1500, 40], 576
    cache, rows = Cache(heads, 3), rows_of([1], 4, 3)
    x, weight = normal(12, k), normal(heads.qkv_width, k, scale=k**-0.5, seed=1)
    product, attention = MatmulRows(heads.qkv_width, k, Epilogue.PLAIN, 12), Attention(heads, 4)
    qkv, out = poisoned(12, heads.qkv_width, dtype=torch.float32), poisoned(12, heads.width)
    work = Workspace(*(poisoned(*shape, dtype=torch.float32) for shape in attention.partial_shapes(3)))
    length = counted([p - 3 for p in positions])
    product(qkv, x, weight, rows)
    want = cache.attend(qkv, positions, 4, active=[1])[:4]
    assert want.isfinite().all()
    for _ in range(50):
        qkv.fill_(float("nan"))
        out.fill_(float("nan"))
        product(qkv, x, weight, rows)
        attention(
            *(out, qkv, rows, work, LayerPages(cache.k_pages, cache.v_pages), cache.rope),
            block_table=cache.block_table,
            length=length,
            offset=3,
        )
        assert torch.equal(out[:4], want) and out[4:].isnan().all()


def test_what_lies_beyond_a_rows_position_does_not_reach_it() -> None:
    cache = Cache(Heads(32, 8, 128, POSITIONS), 1)
    qkv = cache.qkv(1)
    before = cache.attend(qkv, [700], 1)
    block = int(cache.block_table[0, 701 // BLOCK])
    cache.k_pages[block, :, 701 % BLOCK :] = 7
    cache.v_pages[block, :, :, 701 % BLOCK :] = -9
    assert torch.equal(cache.attend(qkv, [700], 1), before)
    cache.v_pages[int(cache.block_table[0, 3]), 2, 5, 6] += 1
    assert not torch.equal(cache.attend(qkv, [700], 1), before)
