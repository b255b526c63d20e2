from __future__ import annotations

import pytest
import torch

from specgate.backends.cupy_eagle3.bench import oracles
from specgate.backends.cupy_eagle3.kernels.attention import Attention
from specgate.backends.cupy_eagle3.kernels.heads import BLOCK, CHUNK, Heads
from tests.backends.cupy_eagle3.kernels.device import counted, normal, paged, poisoned, relative_error, rows_of

pytestmark = pytest.mark.gpu

POSITIONS = 2200
HEADS = [(32, 8, 128), (9, 3, 64), (8, 8, 64), (8, 1, 128), (14, 2, 64), (6, 1, 64), (10, 2, 128)]
EDGES = [0, 1, 31, 32, BLOCK - 1, BLOCK, CHUNK - 2, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK - 1, 2047, 2150]


class Cache:
    """A random cache of `slots` slots, and attention over it."""

    def __init__(self, heads: Heads, slots: int) -> None:
        self.heads = heads
        self.keys, self.values, self.k_pages, self.v_pages, self.block_table = paged(heads, slots)

    def attend(
        self,
        q: torch.Tensor,
        positions: list[int],
        rows: int,
        window: int | None = None,
        active: list[int] | None = None,
    ) -> torch.Tensor:
        """q [slots · rows, N·D]; row t of slot s stands at positions[s] + t. What is not written stays poisoned."""
        kernel = Attention(self.heads, rows, window)
        slots = len(positions)
        partial = [poisoned(*shape, dtype=torch.float32) for shape in kernel.partial_shapes(slots)]
        out = poisoned(slots * rows, self.heads.width)
        listed = rows_of(list(range(slots)) if active is None else active, rows, slots)
        tables = (self.k_pages, self.v_pages, self.block_table)
        kernel(out, (partial[0], partial[1]), q, *tables, counted([p - 3 for p in positions]), listed, offset=3)
        return out

    def oracle(self, q: torch.Tensor, positions: list[int], rows: int, window: int | None = None) -> torch.Tensor:
        n, d = self.heads.heads, self.heads.head_dim
        return torch.stack(
            [
                oracles.attention(q[s * rows + t].view(n, d), self.keys[s], self.values[s], p + t, window).flatten()
                for s, p in enumerate(positions)
                for t in range(rows)
            ]
        )


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), HEADS)
@pytest.mark.parametrize("rows", [1, 2, 4, 6, 8])
def test_attention_over_paged_keys_and_values_agrees_with_float64(
    heads: int, kv_heads: int, head_dim: int, rows: int
) -> None:
    cache = Cache(Heads(heads, kv_heads, head_dim, POSITIONS), len(EDGES))
    q = normal(len(EDGES) * rows, cache.heads.width)
    assert relative_error(cache.attend(q, EDGES, rows), cache.oracle(q, EDGES, rows)) < 4e-3


@pytest.mark.parametrize("window", [1, 5, 64, 512, 700])
def test_a_window_hides_what_is_older(window: int) -> None:
    cache = Cache(Heads(9, 3, 64, POSITIONS), len(EDGES))
    for rows in (1, 4):
        q = normal(len(EDGES) * rows, cache.heads.width)
        got = cache.attend(q, EDGES, rows, window)
        assert relative_error(got, cache.oracle(q, EDGES, rows, window)) < 4e-3


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), HEADS)
@pytest.mark.parametrize("window", [None, 700])
def test_a_rows_bits_do_not_depend_on_the_rows_beside_it(
    heads: int, kv_heads: int, head_dim: int, window: int | None
) -> None:
    cache = Cache(Heads(heads, kv_heads, head_dim, POSITIONS), len(EDGES))
    q = normal(len(EDGES) * 8, cache.heads.width).view(len(EDGES), 8, -1)
    whole = cache.attend(q.flatten(0, 1), EDGES, 8, window).view(len(EDGES), 8, -1)
    for rows in (1, 2, 3, 4, 5, 6):
        for first in (0, 8 - rows):
            part = q[:, first : first + rows].flatten(0, 1).contiguous()
            got = cache.attend(part, [p + first for p in EDGES], rows, window)
            assert torch.equal(got.view(len(EDGES), rows, -1), whole[:, first : first + rows])


def test_slots_that_are_done_cost_nothing_and_change_nothing() -> None:
    cache = Cache(Heads(9, 3, 64, POSITIONS), 4)
    q, positions = normal(16, cache.heads.width), [700, 100, 1500, 3]
    everyone = cache.attend(q, positions, 4)
    # Slots 1 and 3 go on: their queries are packed first.
    packed = torch.cat((q[4:8], q[12:16], q[:8]))
    got = cache.attend(packed, positions, 4, active=[1, 3])
    assert torch.equal(got[:8], torch.cat((everyone[4:8], everyone[12:16])))
    assert got[8:].isnan().all()


def test_what_lies_beyond_a_rows_position_does_not_reach_it() -> None:
    cache = Cache(Heads(32, 8, 128, POSITIONS), 1)
    q = normal(1, cache.heads.width)
    before = cache.attend(q, [700], 1)
    block = int(cache.block_table[0, 701 // BLOCK])
    cache.k_pages[block, :, 701 % BLOCK :] = 7
    cache.v_pages[block, :, :, 701 % BLOCK :] = -9
    assert torch.equal(cache.attend(q, [700], 1), before)
    cache.v_pages[int(cache.block_table[0, 3]), 2, 5, 6] += 1
    assert not torch.equal(cache.attend(q, [700], 1), before)
