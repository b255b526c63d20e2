from __future__ import annotations

import pytest
import torch

from specgate.backends.cupy_eagle3.bench import oracles
from specgate.backends.cupy_eagle3.kernels.heads import BLOCK, Heads
from specgate.backends.cupy_eagle3.kernels.rope_append import RopeAppend
from specgate.backends.eagle3.geometry import RopeSpec
from specgate.backends.eagle3.rope import cos_sin_table
from tests.backends.cupy_eagle3.kernels.device import counted, normal, paged, poisoned, relative_error, rows_of

pytestmark = pytest.mark.gpu

POSITIONS = 1000


@pytest.mark.parametrize("heads", [Heads(32, 8, 128, POSITIONS), Heads(9, 3, 64, POSITIONS)])
@pytest.mark.parametrize("draft", [False, True])
def test_queries_and_keys_are_rotated_and_appended_where_they_stand(heads: Heads, draft: bool) -> None:
    slots, rows, active, lengths = 4, 5, [0, 2, 3], [0, 9, BLOCK - 2, 900]
    table = cos_sin_table(RopeSpec("default", 10000.0, heads.head_dim), POSITIONS, "cuda")
    _, _, k_pages, v_pages, block_table = paged(heads, slots)
    k_before, v_before = k_pages.clone(), v_pages.clone()
    qkv = normal(slots * rows, heads.qkv_width, dtype=torch.float32)
    counts = [1, 4, 5, 2]
    length = [n + 5 for n in lengths] if draft else lengths
    q = poisoned(slots if draft else slots * rows, heads.width)
    RopeAppend(heads)(
        q,
        k_pages,
        v_pages,
        qkv,
        table,
        block_table,
        counted(length),
        rows_of(active, rows, slots),
        offset=-1 if draft else 0,
        counts=counted(counts) if draft else None,
    )
    g = heads.kv_heads
    for a, slot in enumerate(active):
        for t in range(counts[slot] if draft else rows):
            position = length[slot] - counts[slot] + t if draft else lengths[slot] + t
            parts = qkv[a * rows + t].view(-1, heads.head_dim)
            turned = oracles.rope(parts[: -g or None], table[0][position], table[1][position])
            block, place = int(block_table[slot, position // BLOCK]), position % BLOCK
            assert relative_error(k_pages[block, :, place], turned[heads.heads :]) < 3e-3
            assert torch.equal(v_pages[block, :, :, place], parts[-g:].bfloat16())
            k_before[block, :, place], v_before[block, :, :, place] = (
                k_pages[block, :, place],
                v_pages[block, :, :, place],
            )
            if not draft or t == counts[slot] - 1:
                row = q[a if draft else a * rows + t].view(-1, heads.head_dim)
                assert relative_error(row, turned[: heads.heads]) < 3e-3
    assert torch.equal(k_pages, k_before) and torch.equal(v_pages, v_before)
    assert q[len(active) * (1 if draft else rows) :].isnan().all()
