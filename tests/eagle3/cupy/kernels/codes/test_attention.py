"""Attention over a cache of codes: on a CPU as C++, and on a GPU. The reference engine's plane says what is cached."""

from __future__ import annotations

import math

import pytest
import torch

from specgate.backends.eagle3.cupy.kernels.attention.fmha_config import CANDIDATES, FmhaConfig
from specgate.backends.eagle3.cupy.kernels.heads import BLOCK, OUTER_BYTES, SCALE_POSITIONS, Heads
from specgate.backends.eagle3.lib.kv.modes import FP8_POSITIONS, MODES, KvMode, position_bytes
from tests.eagle3.cupy.kernels.codes.caches import CODES, POSITIONS, Cache
from tests.eagle3.cupy.kernels.crossed import crossed
from tests.eagle3.cupy.kernels.device import normal, relative_error

EDGES = [0, 1, 14, 15, 16, 61, 127, 250]
HEADS = [(4, 2, 128), (9, 3, 64), (8, 1, 64)]
ROUNDED = 1e-3
"""Of queries and probabilities in float16."""


@pytest.fixture(params=CODES)
def kv(request: pytest.FixtureRequest) -> KvMode:
    """The format of the cache."""
    mode: KvMode = request.param
    return mode


@pytest.mark.parametrize("kv", MODES)
def test_the_kernels_and_the_format_agree_on_sizes(kv: KvMode) -> None:
    assert SCALE_POSITIONS == FP8_POSITIONS
    for kv_heads, head_dim in ((8, 128), (3, 64)):
        heads = Heads(kv_heads, kv_heads, head_dim, 64, kv)
        assert math.ceil(heads.position_bytes) == position_bytes(kv, kv_heads, head_dim, 2)
        pages = sum(math.prod(shape) * heads.cached.itemsize for shape in heads.page_shapes)
        if heads.scale_shape is not None:
            pages += math.prod(heads.scale_shape[0]) * heads.scale_shape[1].itemsize
        assert pages - OUTER_BYTES * kv_heads * (kv == "nvfp4") == BLOCK * heads.position_bytes


@crossed(kv=CODES, heads=HEADS, window=(None, 100))
def test_it_agrees_with_float64_over_what_the_reference_engine_would_have_cached_and_a_rows_bits_are_its_own(
    device: str, kv: KvMode, heads: tuple[int, int, int], window: int | None
) -> None:
    """Rows together are held against float64, and rows in steps of fewer against them. Positions 61 + 7 and 127 + 7
    lie in other scales' blocks than the rows before them.
    """
    sizes, most = Heads(*heads, POSITIONS, kv), 8
    together = Cache(sizes, len(EDGES), device)
    qkv = together.qkv(len(EDGES) * most).view(len(EDGES), most, -1)
    whole = together.attend(qkv.flatten(0, 1), EDGES, most, window)
    queries = together.append(qkv.flatten(0, 1), EDGES, most)
    assert together.holds_what_it_should()
    assert relative_error(whole, together.oracle(queries, EDGES, window)) < ROUNDED + 2e-3  # what leaves is bfloat16
    for rows in (3, 1):
        apart = Cache(sizes, len(EDGES), device)
        for first in range(0, most - rows + 1, rows):
            part = qkv[:, first : first + rows].flatten(0, 1).contiguous()
            got = apart.attend(part, [p + first for p in EDGES], rows, window)
            of_whole = whole.view(len(EDGES), most, -1)[:, first : first + rows]
            assert torch.equal(got.view(len(EDGES), rows, -1), of_whole)
    for of in ("k_pages", "v_pages", "scales"):  # row after row they become the same
        assert torch.equal(getattr(apart, of), getattr(together, of))


def test_rejected_rows_leave_no_trace(device: str, kv: KvMode) -> None:
    """Large ones, which would have other scales, at the first position of a block and behind it. Heads and rows are
    some for which the test above compiles kernels.
    """
    sizes, positions = Heads(*HEADS[CODES.index(kv)], POSITIONS, kv), [14, 15, 16, 17, 60]
    with_drafts, plain = Cache(sizes, 5, device), Cache(sizes, 5, device)
    drafts = with_drafts.qkv(5 * 8, scale=300.0, seed=5)
    qkv = plain.qkv(5 * 4, seed=1).view(5, 4, -1)
    drafts.view(5, 8, -1)[:, 0] = qkv[:, 0]  # accepted; the other seven are not
    first = with_drafts.attend(drafts, positions, 8).view(5, 8, -1)[:, 0]
    assert torch.equal(first, plain.attend(qkv[:, 0].contiguous(), positions, 1))
    then = [p + 1 for p in positions]
    rest = qkv[:, 1:].flatten(0, 1).contiguous()
    got, want = (cache.attend(rest, then, 3) for cache in (with_drafts, plain))
    assert torch.equal(got, want)
    plain.append(qkv.flatten(0, 1), positions, 4)
    assert plain.holds_what_it_should()


@pytest.mark.parametrize("window", [None, 70])
def test_an_extension_caches_all_its_rows_and_asks_with_the_newest(device: str, kv: KvMode, window: int | None) -> None:
    cache, positions, counts = Cache(Heads(9, 3, 64, POSITIONS, kv), 4, device), [5, 129, 150, 64], [3, 6, 1, 4]
    qkv = cache.qkv(4 * 6)
    got = cache.attend(qkv, positions, 6, window, counts=counts)
    queries = cache.append(qkv, positions, 6, counts)
    assert cache.holds_what_it_should()
    assert relative_error(got, cache.oracle(queries, positions, window)) < ROUNDED + 2e-3


@pytest.mark.parametrize("window", [1, 17, 64, 130])
def test_a_window_hides_what_is_older_and_a_sink_takes_its_share(device: str, kv: KvMode, window: int) -> None:
    cache = Cache(Heads(8, 1, 64, POSITIONS, kv), len(EDGES), device)
    sinks = normal(8, scale=4.0, seed=3, device=device)
    qkv = cache.qkv(len(EDGES) * 2)
    got = cache.attend(qkv, EDGES, 2, window, sinks=sinks)
    want = cache.oracle(cache.append(qkv, EDGES, 2), EDGES, window, sinks)
    assert relative_error(got, want) < ROUNDED + 2e-3


@pytest.mark.parametrize("spoiled", [float("nan"), float("inf")])
@pytest.mark.parametrize("part", [0, 1, 2], ids=["query", "key", "value"])
def test_what_is_not_finite_comes_to_light(device: str, kv: KvMode, spoiled: float, part: int) -> None:
    cache = Cache(Heads(1, 1, 64, POSITIONS, kv), 2, device)
    qkv = cache.qkv(2)
    qkv[1, 64 * part + 5] = spoiled
    got = cache.attend(qkv, [32, 37], 1)
    assert got[0].isfinite().all() and not got[1].isfinite().all()


@pytest.mark.parametrize("config", [FmhaConfig(64, 2, 1), FmhaConfig(256, 8, 8)])
def test_every_way_to_cut_it_agrees_with_float64(device: str, kv: KvMode, config: FmhaConfig) -> None:
    cache = Cache(Heads(9, 3, 64, POSITIONS, kv), len(EDGES), device)
    qkv = cache.qkv(len(EDGES) * 4)
    got = cache.attend(qkv, EDGES, 4, config=config)
    assert relative_error(got, cache.oracle(cache.append(qkv, EDGES, 4), EDGES)) < ROUNDED + 2e-3


def test_caches_of_another_format_are_refused(kv: KvMode) -> None:
    cache = Cache(Heads(4, 2, 64, POSITIONS, kv), 1, "cpu")
    cache.k_pages = cache.k_pages.bfloat16()
    with pytest.raises(ValueError, match=r"k_pages: torch.bfloat16.*a contiguous torch.uint8"):
        cache.attend(cache.qkv(1), [3], 1)
    other: KvMode = "fp8" if kv == "nvfp4" else "nvfp4"
    cache, others = Cache(cache.heads, 1, "cpu"), Cache(Heads(4, 2, 64, POSITIONS, other), 1, "cpu")
    cache.k_pages = others.k_pages
    with pytest.raises(ValueError, match=r"k_pages: .* is needed"):
        cache.attend(cache.qkv(1), [3], 1)


LONG = 2200


@pytest.mark.gpu
@pytest.mark.parametrize("heads", [(32, 8, 128), (9, 3, 64)], ids=["128", "64"])
@pytest.mark.parametrize("config", (*CANDIDATES, FmhaConfig(512, 4, 1), FmhaConfig(256, 2, 8)), ids=str)
@torch.inference_mode()
def test_every_configuration_agrees_with_float64_and_with_itself(
    config: FmhaConfig, heads: tuple[int, int, int], kv: KvMode
) -> None:
    positions = [0, 15, 31, BLOCK, 510, 511, 512, 1023, 1024, 2047, 2150]
    cache = Cache(Heads(*heads, LONG, kv), len(positions), "cuda")
    qkv = cache.qkv(len(positions) * 4)
    got = cache.attend(qkv, positions, 4, config=config)
    queries = cache.append(qkv, positions, 4)
    assert cache.holds_what_it_should()
    assert relative_error(got, cache.oracle(queries, positions)) < ROUNDED + 2e-3
    alone = cache.attend(qkv[::4].contiguous(), positions, 1, config=config)
    assert torch.equal(alone, got[::4])
