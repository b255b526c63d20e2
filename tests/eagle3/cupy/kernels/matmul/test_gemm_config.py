"""Configurations of a product that are worth trying, and their fate on a GPU with little shared memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from specgate.backends.eagle3.cupy.device import LEAST_SHARED, RESERVED_SHARED, Multiprocessors
from specgate.backends.eagle3.cupy.kernels.matmul import gemm_config, matmul_rows
from specgate.backends.eagle3.cupy.kernels.matmul.gemm_config import (
    DECLARED,
    K_CHUNKS,
    WARPS,
    GemmConfig,
    limit_occupancy,
    most_chunks,
)
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import Epilogue, MatmulRows
from specgate.backends.eagle3.cupy.tuning import gemm_weight
from specgate.backends.eagle3.cupy.tuning.gemm_weight import DEEP, candidates, retilings

configs = st.builds(
    GemmConfig,
    warps=st.sampled_from(WARPS),
    k_chunks=st.sampled_from(K_CHUNKS),
    stages=st.integers(1, 6),
    tiles=st.integers(1, 4),
    passes=st.integers(1, 40),
    delay_dependents=st.sampled_from((0, 1)),
)
wide = st.integers(1, 9000)
deep = st.integers(1, 600).map(lambda chunks: 32 * chunks)


def test_files_name_the_fields_as_they_always_have() -> None:
    stored = {"warps": 4, "span": 1, "stages": 6, "tiles": 2, "passes": 7, "held": 1}
    assert GemmConfig(4, 1, 6, 2, 7, 1).stored() == stored


@given(configs)
def test_what_is_stored_is_read_back(config: GemmConfig) -> None:
    assert GemmConfig.from_stored(config.stored()) == config


@given(configs, deep, st.integers(1, 8))
def test_a_fitted_configuration_splits_k_alike_and_fits(config: GemmConfig, k: int, row_tiles: int) -> None:
    least = replace(config, stages=2, tiles=1, passes=1)
    assume(least.ring_bytes <= least.ring_limit(LEAST_SHARED))  # beyond that it is refused
    fitted = config.fitted(k, LEAST_SHARED)
    assert fitted.passes in (1, config.passes)
    assert fitted.split == config.split
    assert fitted.tiles <= config.tiles and 1 <= fitted.stages <= config.stages
    assert fitted.shared_bytes(k, row_tiles) + DECLARED <= LEAST_SHARED


@given(st.sampled_from(WARPS), st.sampled_from(K_CHUNKS), wide, deep, st.integers(1, 200))
def test_what_moves_work_otherwise_splits_k_alike_leaves_no_block_idle_and_is_possible(
    warps: int, k_chunks: int, n: int, k: int, processors: int
) -> None:
    moved = retilings(GemmConfig(warps, k_chunks), n, k, processors)
    assert len(set(moved)) == len(moved)
    for config in moved:
        groups = -(-n // (16 * config.tiles))
        assert config.split == (warps, k_chunks)
        assert config.possible(n, k) or warps * k_chunks > most_chunks(k)
        assert config.passes == 1 or -(-groups // config.passes) <= 3 * processors
        assert config.passes <= groups


def test_a_split_whose_least_ring_does_not_fit_is_refused_with_both_sizes() -> None:
    with pytest.raises(ValueError, match="131072 bytes of shared memory are needed; 99840 are there"):
        GemmConfig(16, 4).fitted(4096, LEAST_SHARED)


def test_passes_are_given_up_where_ring_and_sums_do_not_fit_side_by_side() -> None:
    several = GemmConfig(16, 2, 3, 1, passes=7)
    assert several.fitted(4096, 96 * 1024) == GemmConfig(16, 2, 2, 1, passes=1)
    assert several.fitted(4096, LEAST_SHARED) == GemmConfig(16, 2, 2, 1, passes=7)


@pytest.mark.parametrize(
    "changes",
    [
        *({"warps": 7}, {"k_chunks": 3}, {"k_chunks": 4}, {"stages": 0}, {"stages": 5}, {"tiles": 0}, {"tiles": 5}),
        *({"passes": 0}, {"passes": 257}, {"delay_dependents": 2}),
    ],
    ids=str,
)
def test_a_configuration_that_no_search_tries_is_not_possible(changes: dict[str, int]) -> None:
    assert GemmConfig().possible(4096, 4096) and GemmConfig(passes=256).possible(4096, 4096)
    assert not replace(GemmConfig(), **changes).possible(4096, 4096)


@given(wide, deep)
def test_what_is_tried_first_is_possible(n: int, k: int) -> None:
    assert all(config.possible(n, k) for config in (GemmConfig(), *candidates(n, k)))


@given(st.integers(1, 40), st.integers(0, 15), st.integers(8, 160).map(lambda chunks: 32 * chunks), st.integers(1, 200))
def test_what_is_tried_in_several_passes_is_one_block_for_an_sm_that_keeps_x_and_is_enough_for_it(
    passes: int, more: int, k: int, processors: int
) -> None:
    n = passes * 16 * processors + more
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gemm_weight, "multiprocessors", lambda: Multiprocessors(processors, 228 * 1024))
        patch.setattr(gemm_weight, "shared_memory_limit", lambda: 226 * 1024)
        tried = candidates(n, k)
    assert all(config.possible(n, k) for config in tried)
    several = [config for config in tried if config.passes > 1]
    assert several or passes < 6 or not 512 <= k <= 4096
    for config in several:
        groups = -(-n // (16 * config.tiles))
        assert -(-groups // config.passes) <= processors < -(-groups // (config.passes - 1))
        assert config.x_in_registers(n, k, 1) and config.ring_bytes >= DEEP
        assert config.shared_bytes(k, 1) + DECLARED <= 226 * 1024


@pytest.mark.parametrize(
    ("config", "k", "row_tiles", "kept"),
    [
        (GemmConfig(16, 2, 4, 1, 14), 4096, 1, True),  # 32 registers of x
        (GemmConfig(16, 2, 4, 1, 14), 4096, 2, True),
        (GemmConfig(8, 4, 2, 1, 7), 4096, 1, True),  # 64
        (GemmConfig(8, 4, 2, 1, 7), 4096, 2, False),  # 128
        (GemmConfig(8, 4, 2, 4, 7), 4096, 1, False),  # too many tiles beside them
        (GemmConfig(16, 2, 2, 1, 2), 14336, 1, False),  # 112
        (GemmConfig(16, 2, 4, 1), 4096, 1, False),  # one pass: x is needed once
        (GemmConfig(4, 1, 6, 1, 9), 2432, 1, True),  # 76, and 16 beside them
        (GemmConfig(4, 1, 6, 1, 9), 2464, 1, False),  # 80: a turn of which one warp takes part
    ],
)
def test_x_stays_in_registers_over_several_passes_where_it_finds_room(
    config: GemmConfig, k: int, row_tiles: int, kept: bool
) -> None:
    assert config.x_in_registers(28672, k, row_tiles) == kept


@pytest.mark.parametrize(
    ("config", "n", "k", "kept"),
    [
        (GemmConfig(16, 2, 2), 576, 1536, True),
        (GemmConfig(16, 2, 1), 576, 576, False),  # one turn: asked for at once anyway
        (GemmConfig(16, 1, 2), 4080, 1024, True),  # 32 KiB below 8 MiB
        (GemmConfig(16, 1, 2), 4096, 1024, False),  # 8 MiB: other warps work while one waits
        (GemmConfig(4, 1, 4), 576, 1536, True),
        (GemmConfig(4, 1, 4), 576, 2560, False),  # 80 registers, and 16 beside them
    ],
)
def test_x_of_a_small_weight_is_asked_for_at_once_where_it_finds_room(
    config: GemmConfig, n: int, k: int, kept: bool
) -> None:
    assert config.x_in_registers(n, k, 1) == kept


@given(configs, deep, st.integers(1, 8))
def test_a_block_asks_for_the_places_that_its_weights_are_copied_to_and_no_more(
    config: GemmConfig, k: int, row_tiles: int
) -> None:
    once, units = replace(config, passes=1), -(-k // (32 * config.k_chunks))
    # Unit u is turn u // warps of warp u % warps; the ring has a place for each warp and stage.
    places = 1 + max(u // once.warps % once.stages * once.warps + u % once.warps for u in range(units))
    weights = places * once.k_chunks * once.tiles * 16 * 32 * 2  # rows, columns and bytes of a tile's chunk
    assert once.shared_bytes(k, row_tiles) == max(weights, once.sum_bytes(once.tiles * row_tiles))


@pytest.mark.parametrize(("row_tiles", "kept"), [(1, "1"), (2, "0")])
def test_the_kernel_is_told_whether_x_stays(monkeypatch: pytest.MonkeyPatch, row_tiles: int, kept: str) -> None:
    monkeypatch.setattr(matmul_rows, "shared_memory_limit", lambda: 226 * 1024)
    kernel = MatmulRows(4096, 4096, Epilogue.PLAIN, 8 * row_tiles, GemmConfig(8, 4, 2, 1, 7))
    assert dict(kernel.spec.constants)["X_IN_REGISTERS"] == kept


def test_sixteen_rows_take_two_tiles_of_weight_and_more_rows_one() -> None:
    tiles = {rows: GemmConfig(tiles=2).at(rows).tiles for rows in (1, 8, 9, 16, 17, 64)}
    assert tiles == {1: 2, 8: 2, 9: 2, 16: 2, 17: 1, 64: 1}
    assert GemmConfig(tiles=1).at(16).tiles == 2


def test_passes_found_at_a_few_rows_are_not_made_at_more() -> None:
    config = GemmConfig(16, 2, 6, 1, passes=14)
    assert config.at(8) == config
    assert config.at(16) == GemmConfig(16, 2, 4, 2)


def test_at_many_rows_two_blocks_share_an_sm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm_config, "shared_memory_limit", lambda: 226 * 1024)
    assert GemmConfig(16, 2, 6, 1, passes=14).at(17) == GemmConfig(16, 2, 3, 1)
    assert GemmConfig(8, 1, 6, 2, passes=12).at(64) == GemmConfig(8, 1, 4, 1)


@given(
    needed=st.integers(0, 200 * 1024),
    blocks=st.integers(1, 2000),
    processors=st.integers(1, 200),
    room=st.sampled_from((100 * 1024, 164 * 1024, 228 * 1024)),
)
def test_an_sm_gets_room_for_its_share_of_the_blocks_and_for_no_more(
    needed: int, blocks: int, processors: int, room: int
) -> None:
    occupancy, share = limit_occupancy(needed, blocks, processors, room), -(-blocks // processors)
    assert occupancy >= needed
    assert occupancy == needed or share * (occupancy + DECLARED + RESERVED_SHARED) <= room
    assert share > 8 or (share + 1) * (occupancy + RESERVED_SHARED) > room


@pytest.mark.parametrize(
    ("n_out", "k_in", "epilogue", "config", "shared"),
    [
        (4096, 4096, Epilogue.RESIDUAL, GemmConfig(8, 4, 2), 76928),  # 256 blocks: two per SM, not three
        (6144, 4096, Epilogue.PLAIN, GemmConfig(8, 4, 2), 65536),  # 384: three, and no more would fit
        (14336, 4096, Epilogue.SWIGLU, GemmConfig(4, 1, 2, 2), 28288),  # 896: seven
        (14336, 4096, Epilogue.SWIGLU, GemmConfig(16, 2, 3, 1, 14), 115840),  # 128: one
        (128256, 4096, Epilogue.PLAIN, GemmConfig(8, 1, 2, 2), 32768),  # 4008: many waves
        (1536, 576, Epilogue.SWIGLU, GemmConfig(8, 2, 2, 2), 36864),  # 3.5 MB: left alone
    ],
)
def test_blocks_of_large_products_alone_are_spread(
    monkeypatch: pytest.MonkeyPatch, n_out: int, k_in: int, epilogue: Epilogue, config: GemmConfig, shared: int
) -> None:
    monkeypatch.setattr(matmul_rows, "multiprocessors", lambda: Multiprocessors(132, 228 * 1024))
    monkeypatch.setattr(matmul_rows, "shared_memory_limit", lambda: 226 * 1024)
    assert MatmulRows(n_out, k_in, epilogue, 4, config).shared_bytes == shared
