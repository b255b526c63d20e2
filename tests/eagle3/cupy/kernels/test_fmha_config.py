"""Attention's own configuration, and the fit of its tile to a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.backends.eagle3.cupy.device import RESERVED_SHARED, Multiprocessors
from specgate.backends.eagle3.cupy.kernels.attention import fmha_config
from specgate.backends.eagle3.cupy.kernels.attention.fmha_config import (
    LONGEST_TILE,
    REGIMES,
    SHORTEST_TILE,
    STATIC_SHARED_BYTES,
    FmhaConfig,
    tile_of_whole_waves,
    usual_config,
)
from specgate.backends.eagle3.cupy.kernels.heads import BLOCK, Heads
from specgate.backends.eagle3.lib.kv.modes import MODES, KvMode


def test_each_regime_has_its_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fmha_config, "multiprocessors", lambda: None)
    by_regime = {
        (regime.head_dim, regime.slots, regime.positions): regime.config for regime in REGIMES if regime.kv is None
    }
    for dim, least in ((128, 128), (64, 0)):

        def usual(slots: int, positions: int, dim: int = dim) -> FmhaConfig:
            return usual_config(Heads(8, 2, dim, positions), slots)

        assert usual(1, 40000) == usual(3, 100) == usual(8, 8191) == by_regime[least, 1, 0]
        assert usual(4, 8192) == usual(8, 40000) == by_regime[least, 4, 8192]


@pytest.mark.parametrize(
    ("heads", "slots", "tile", "blocks"),
    [
        (Heads(32, 8, 128, 33280), 1, 1024, 264),  # two on each of 132 SMs
        (Heads(32, 8, 128, 34880), 1, 1088, 264),
        (Heads(32, 8, 128, 18500), 4, 1216, 512),
        (Heads(32, 8, 128, 9216), 1, 1024, 72),
        (Heads(9, 3, 64, 33280), 1, 832, 120),
        (Heads(9, 3, 64, 18500), 4, 896, 252),
        (Heads(9, 3, 64, 300), 1, 832, 3),
        (Heads(64, 8, 64, 32912), 1, 1088, 248),  # two on each SM, of short rings
        (Heads(64, 8, 64, 16000), 1, 1088, 120),  # one on most, of longer ones
        (Heads(32, 8, 128, 34816, "fp8"), 1, 1088, 256),
        (Heads(32, 8, 128, 33280, "nvfp4"), 1, 704, 384),  # three on each SM
        (Heads(32, 8, 128, 18500, "nvfp4"), 4, 1600, 384),
        (Heads(9, 3, 64, 18500, "nvfp4"), 4, 896, 252),
    ],
    ids=str,
)
def test_attention_is_tiled_into_whole_waves_of_blocks(
    monkeypatch: pytest.MonkeyPatch, heads: Heads, slots: int, tile: int, blocks: int
) -> None:
    monkeypatch.setattr(fmha_config, "multiprocessors", lambda: Multiprocessors(132, 228 * 1024))
    monkeypatch.setattr(fmha_config, "shared_memory_limit", lambda: 226 * 1024)
    config = usual_config(heads, slots)
    assert config.kv_tile == tile
    assert -(-heads.positions // config.kv_tile) * heads.kv_heads * slots == blocks


@pytest.mark.parametrize("kv", MODES)
@pytest.mark.parametrize("heads", [Heads(64, 8, 64, 33280), Heads(32, 8, 128, 33280)], ids=["64", "128"])
@pytest.mark.parametrize("shared", [100, 164], ids=["sm_120", "sm_80"])
def test_where_an_h200s_rings_have_no_room_an_sm_holds_two_blocks_with_enough_on_its_way(
    monkeypatch: pytest.MonkeyPatch, heads: Heads, kv: KvMode, shared: int
) -> None:
    monkeypatch.setattr(fmha_config, "shared_memory_limit", lambda: (shared - 2) * 1024)
    gpu, heads = Multiprocessors(188, shared * 1024), replace(heads, kv=kv)
    monkeypatch.setattr(fmha_config, "multiprocessors", lambda: gpu)
    config = usual_config(heads, 1)
    ring, h200s = config.ring_bytes(heads.head_dim, kv=kv), {(r.config.warps, r.config.stages) for r in REGIMES}
    assert ring + STATIC_SHARED_BYTES <= (shared - 2) * 1024
    if (config.warps, config.stages) not in h200s:
        assert config.stages >= 2
        assert 2 * (ring + STATIC_SHARED_BYTES + RESERVED_SHARED) <= shared * 1024 and 2 * ring >= 34 * 1024


@pytest.mark.parametrize("kv", MODES)
@pytest.mark.parametrize("head_dim", [64, 128])
def test_a_block_has_room_for_its_warps_outputs_and_fits_into_the_memory_that_it_is_fitted_to(
    kv: KvMode, head_dim: int
) -> None:
    for config in (FmhaConfig(stages=stages, warps=warps) for stages in range(1, 9) for warps in (2, 4, 8)):
        assert config.ring_bytes(head_dim, kv=kv) >= config.warps * 16 * head_dim * 4
        fitted = config.fitted(head_dim, 90 * 1024, kv=kv)
        assert fitted.stages == config.stages or config.ring_bytes(head_dim, kv=kv) > 90 * 1024
        assert fitted.stages == 1 or fitted.ring_bytes(head_dim, kv=kv) <= 90 * 1024


@given(
    tile=st.integers(1, 32).map(lambda n: 64 * n),
    positions=st.integers(1, 200_000),
    sequences=st.integers(1, 500),
    at_once=st.integers(1, 600),
)
def test_beyond_one_wave_the_tile_is_the_shortest_that_makes_the_nearest_whole_number_of_them(
    tile: int, positions: int, sequences: int, at_once: int
) -> None:
    def blocks(tile: int) -> int:
        return -(-positions // tile) * sequences

    waves = max(1, round(positions * sequences / (tile * at_once)))
    wanted = tile
    if blocks(tile) > at_once and waves * at_once >= sequences:
        tiles = range(SHORTEST_TILE, LONGEST_TILE + 1, BLOCK)
        wanted = next((tile for tile in tiles if blocks(tile) <= waves * at_once), LONGEST_TILE)
    assert tile_of_whole_waves(tile, positions, sequences, at_once) == wanted
