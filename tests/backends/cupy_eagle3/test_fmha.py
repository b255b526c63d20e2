from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specgate.backends.cupy_eagle3.buffers import Buffers, tensors_of
from specgate.backends.cupy_eagle3.fmha import config_of, recut
from specgate.backends.cupy_eagle3.kernels import attention
from specgate.backends.cupy_eagle3.kernels.attention import (
    LONGEST_TILE,
    REGIMES,
    SHORTEST_TILE,
    FmhaConfig,
    tile_of_whole_waves,
    usual_config,
)
from specgate.backends.cupy_eagle3.kernels.heads import BLOCK, Heads
from specgate.backends.cupy_eagle3.sizes import Sizes
from specgate.core import Budget, Role
from specgate.errors import UsageError
from tests.backends.cupy_eagle3.pairs import DRAFT, TARGET


def test_knobs_that_are_not_named_keep_their_default() -> None:
    assert config_of({"kv_tile": 256}) == FmhaConfig(kv_tile=256)
    assert config_of({}) == FmhaConfig()


@pytest.mark.parametrize(("knobs", "said"), [({"tile": 1}, "no knob 'tile'"), ({"kv_tile": 100}, "multiple of 64")])
def test_a_knob_or_value_that_attention_does_not_have_is_refused(knobs: dict[str, int], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        config_of(knobs)


def test_each_regime_has_its_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "multiprocessors", lambda: None)
    by_regime = {(regime.head_dim, regime.slots, regime.positions): regime.config for regime in REGIMES}
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
    ],
    ids=str,
)
def test_attention_is_cut_into_whole_waves_of_blocks(
    monkeypatch: pytest.MonkeyPatch, heads: Heads, slots: int, tile: int, blocks: int
) -> None:
    monkeypatch.setattr(attention, "multiprocessors", lambda: (132, 228 * 1024))
    monkeypatch.setattr(attention, "shared_memory_limit", lambda: 226 * 1024)
    config = usual_config(heads, slots)
    assert config.kv_tile == tile
    assert -(-heads.positions // config.kv_tile) * heads.kv_heads * slots == blocks


@given(
    tile=st.integers(1, 32).map(lambda n: 64 * n),
    positions=st.integers(1, 200_000),
    spans=st.integers(1, 500),
    at_once=st.integers(1, 600),
)
def test_beyond_one_wave_the_tile_is_the_shortest_that_makes_the_nearest_whole_number_of_them(
    tile: int, positions: int, spans: int, at_once: int
) -> None:
    def blocks(tile: int) -> int:
        return -(-positions // tile) * spans

    waves = max(1, round(positions * spans / (tile * at_once)))
    wanted = tile
    if blocks(tile) > at_once and waves * at_once >= spans:
        tiles = range(SHORTEST_TILE, LONGEST_TILE + 1, BLOCK)
        wanted = next((tile for tile in tiles if blocks(tile) <= waves * at_once), LONGEST_TILE)
    assert tile_of_whole_waves(tile, positions, spans, at_once) == wanted


def test_only_the_workspaces_of_attention_are_made_anew() -> None:
    sizes = Sizes(2, 4096, 4, FmhaConfig(512))
    b = Buffers.allocate(TARGET, DRAFT, sizes, "cpu")
    cut = recut(b, TARGET, DRAFT, Sizes(2, 4096, 4, FmhaConfig(128)))
    assert b.draft is not None and cut.draft is not None
    made = {id(t) for t in tensors_of(cut)} - {id(t) for t in tensors_of(b)}
    assert made == {id(t) for t in (*cut.target.layer.partial, *cut.draft.layer.partial)}
    for before, after in ((b.target.layer, cut.target.layer), (b.draft.layer, cut.draft.layer)):
        assert [4 * len(t) for t in before.partial] == [len(t) for t in after.partial]


@pytest.mark.gpu
def test_an_engine_decodes_the_same_greedy_tokens_however_its_attention_is_cut() -> None:
    from tests.backends.cupy_eagle3.gpu_pairs import RECIPE_A, checkpoints, engine_of, random_prompts, shape

    engine = engine_of(*checkpoints(shape(8, 2, 64), RECIPE_A), Sizes(2, 2048, 4))
    engine.prefill(random_prompts([700, 900]), draft=True)
    roles = [Role(0), Role(3)]
    configs = [{"kv_tile": 128, "warps": 2, "stages": 2}, {"kv_tile": 1024, "warps": 4, "stages": 3}]
    assert engine.prepare_attention(configs, roles) == [None, None]
    for config in configs:
        engine.use_attention_config(config)
        assert engine.attention_config() == config
        plain, drafted = (engine.decode(role, Budget(steps=12), ()) for role in roles)
        for want, got in zip(plain.tokens, drafted.tokens, strict=True):
            assert got[: len(want)] == want[: len(got)]
        tiles = [engine.attention_tiles(role) for role in roles]
        for of_role in tiles:
            assert of_role.total == of_role.span_empty + of_role.mask_empty + of_role.executed
            assert of_role.executed > 0
        assert tiles[1].total > tiles[0].total
        again = engine.decode(roles[1], Budget(steps=12), ())
        assert again.tokens == drafted.tokens
    torch.cuda.synchronize()
