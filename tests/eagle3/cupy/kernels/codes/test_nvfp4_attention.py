"""Parts of attention that only a cache in NVFP4 has: on a CPU as C++, and on a GPU."""

from __future__ import annotations

import pytest
import torch

from specgate.backends.eagle3.cupy.kernels.heads import OUTER_BYTES, Heads
from specgate.backends.eagle3.cupy.memory.coded_pages import outer_of
from tests.eagle3.cupy.kernels.codes.caches import POSITIONS, Cache
from tests.eagle3.cupy.kernels.codes.test_attention import ROUNDED
from tests.eagle3.cupy.kernels.device import relative_error

HEADS = [Heads(4, 2, 128, POSITIONS, "nvfp4"), Heads(8, 1, 64, POSITIONS, "nvfp4")]


@pytest.mark.parametrize("heads", HEADS, ids=["128", "64"])
@pytest.mark.parametrize("size", [2.0**-60, 2.0**-20, 2.0**30])
def test_the_outer_scales_give_values_of_any_size_the_same_precision(device: str, heads: Heads, size: float) -> None:
    """Those of a text are made by its first row, which a step brings, or lie in its first cache block."""
    cache, positions, counts = Cache(heads, 3, device, spread=1.0), [0, 4, 7], [1, 5, 8]
    values = heads.kv_heads * heads.head_dim
    for then in (0, 8):
        qkv = cache.qkv(3 * 8, seed=then)
        qkv[:, -values:] *= size
        got = cache.attend(qkv, [p + then for p in positions], 8, counts=counts)
        queries = cache.append(qkv, [p + then for p in positions], 8, counts)
        assert cache.holds_what_it_should()
        assert relative_error(got, cache.oracle(queries, [p + then for p in positions])) < ROUNDED + 2e-3
    first = outer_of(cache.scales[cache.block_table[:, 0].long()])[..., 1]
    assert bool((first / size < 1).all()) and bool((first / size > 0.01).all())


def test_numbers_beyond_the_largest_scale_saturate_and_the_smallest_ones_vanish(device: str) -> None:
    cache = Cache(HEADS[1], 2, device)
    qkv = cache.qkv(2)
    qkv[0, -64:] *= 1e6
    qkv[1, -64:] *= 1e-6
    got = cache.attend(qkv, [70, 90], 1)
    want = cache.oracle(cache.append(qkv, [70, 90], 1), [70, 90])
    assert cache.holds_what_it_should()
    assert relative_error(got, want) < ROUNDED + 2e-3


@pytest.mark.parametrize("code", [0, 0x7F, 0x80, 0xFF])
@pytest.mark.parametrize("kind", [0, 1], ids=["keys", "values"])
@pytest.mark.parametrize("heads", HEADS, ids=["128", "64"])
def test_a_block_scale_that_nothing_of_ours_has_written_comes_to_light(
    device: str, heads: Heads, kind: int, code: int
) -> None:
    """In every byte of a lane's."""
    cache = Cache(heads, 2, device)
    block, of_kind = int(cache.block_table[1, 1]), heads.head_dim // 8
    for byte in range(of_kind):
        at = of_kind * kind + byte
        place = at // 16 * 512 + 5 * 16 + at % 16  # of lane 5
        before = int(cache.scales[block, 0, place])
        cache.scales[block, 0, place] = code
        got = cache.attend(cache.qkv(2), [200, 200], 1).view(2, heads.heads, -1)
        assert got[0].isfinite().all() and got[1, : heads.heads // heads.kv_heads].isnan().all()
        assert got[1, heads.heads // heads.kv_heads :].isfinite().all()
        cache.scales[block, 0, place] = before


@pytest.mark.parametrize("scale", [0.0, float("inf"), float("nan"), -1.0])
@pytest.mark.parametrize("kind", [0, 1], ids=["keys", "values"])
def test_an_outer_scale_that_nothing_of_ours_has_written_comes_to_light(device: str, scale: float, kind: int) -> None:
    cache = Cache(HEADS[1], 2, device)
    bits = torch.tensor([scale], device=device).view(torch.uint8)
    at = 4 * kind - OUTER_BYTES
    cache.scales[cache.block_table[1, 0].long(), 0, at : at + 4] = bits
    got = cache.attend(cache.qkv(2), [200, 200], 1)
    assert got[0].isfinite().all() and got[1].isnan().all()
