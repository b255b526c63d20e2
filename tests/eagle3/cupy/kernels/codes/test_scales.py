"""Attention with scales of any size, and with some that are none: on a CPU as C++, and on a GPU."""

from __future__ import annotations

import pytest
import torch

from specgate.backends.eagle3.cupy.kernels.heads import BLOCK, OUTER_BYTES, Heads
from specgate.backends.eagle3.cupy.memory.coded_pages import outer_of
from specgate.backends.eagle3.lib.kv.modes import KvMode
from tests.eagle3.cupy.kernels.codes.caches import CODES, POSITIONS, Cache
from tests.eagle3.cupy.kernels.codes.test_attention import ROUNDED
from tests.eagle3.cupy.kernels.device import relative_error

HEADS = [Heads(4, 2, 128, POSITIONS, "nvfp4"), Heads(8, 1, 64, POSITIONS, "nvfp4")]


def test_in_e4m3_values_of_very_different_sizes_keep_their_precision(device: str) -> None:
    """From 2^-40 to 2^40, and beside them some that are zero, whose scale is one."""
    cache = Cache(Heads(4, 2, 64, POSITIONS, "fp8"), 2, device, spread=2.0**40)
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
@pytest.mark.parametrize("kv", CODES)
def test_a_float32_scale_that_nothing_of_ours_has_written_comes_to_light(
    device: str, kv: KvMode, kind: int, scale: float
) -> None:
    """Of 16 positions in E4M3, the outer one of a text in NVFP4."""
    cache = Cache(Heads(1, 1, 64, POSITIONS, "fp8") if kv == "fp8" else HEADS[1], 2, device)
    if kv == "fp8":
        cache.scales[cache.block_table[1, 1].long(), 0, 2, kind] = scale
    else:
        bits, at = torch.tensor([scale], device=device).view(torch.uint8), 4 * kind - OUTER_BYTES
        cache.scales[cache.block_table[1, 0].long(), 0, at : at + 4] = bits
    got = cache.attend(cache.qkv(2), [200, 200], 1)
    assert got[0].isfinite().all() and got[1].isnan().all()
