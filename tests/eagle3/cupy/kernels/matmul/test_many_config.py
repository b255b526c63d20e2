"""Division of the work of `matmul_many.cu`: within a GPU's limits, every row, column and slice of k once."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from specgate.backends.eagle3.cupy.device import LEAST_SHARED, RESERVED_SHARED, Multiprocessors
from specgate.backends.eagle3.cupy.kernels.matmul.gemm_config import (
    DECLARED,
    K_CHUNKS,
    MANY_ROWS,
    MAX_ROWS,
    ROW_GROUP,
    ROW_TILE,
    WARPS,
    GemmConfig,
    is_small,
)
from specgate.backends.eagle3.cupy.kernels.matmul.many_config import TILES, ManyConfig

H200 = Multiprocessors(132, 228 * 1024, (9, 0))
A100 = Multiprocessors(108, 164 * 1024, (8, 0))
CONSUMER = Multiprocessors(170, 100 * 1024, (12, 0))
ROOMS = {None: LEAST_SHARED, H200: 226 * 1024, A100: 162 * 1024, CONSUMER: 98 * 1024}
"""GPU → bytes of shared memory that a block of it may have."""

gpus = st.sampled_from(list(ROOMS))
splits = st.builds(GemmConfig, warps=st.sampled_from(WARPS), k_chunks=st.sampled_from(K_CHUNKS))
weights = st.tuples(st.integers(1, 300_000), st.integers(1, 900).map(lambda chunks: 32 * chunks))
large = st.tuples(st.integers(4096, 300_000), st.integers(16, 112).map(lambda turns: 256 * turns))
many = st.integers(MANY_ROWS + 1, MAX_ROWS)
"""Most of these have a way."""


@given(splits, weights, st.integers(1, MAX_ROWS), gpus)
def test_few_rows_and_small_weights_have_none(
    split: GemmConfig, weight: tuple[int, int], rows: int, gpu: Multiprocessors | None
) -> None:
    way = ManyConfig.of(split, weight, rows, ROOMS[gpu], gpu)
    assert way is None or (rows > MANY_ROWS and not is_small(*weight))


@given(splits, large, many, gpus)
def test_a_way_fits_the_gpu_and_takes_every_row(
    split: GemmConfig, weight: tuple[int, int], rows: int, gpu: Multiprocessors | None
) -> None:
    way = ManyConfig.of(split, weight, rows, ROOMS[gpu], gpu)
    assume(way is not None)
    assert way is not None
    assert way.row_groups * way.row_tiles * ROW_TILE >= rows
    assert way.row_tiles * ROW_TILE <= ROW_GROUP
    assert way.stages >= 2
    assert way.shared_bytes(split) <= ROOMS[gpu]
    if gpu is not None:
        blocks_of_an_sm = 2 if way.row_tiles <= 4 else 1
        assert blocks_of_an_sm * (way.shared_bytes(split) + DECLARED + RESERVED_SHARED) <= gpu.shared_memory


@given(splits, large, many, gpus)
def test_the_blocks_of_a_cluster_share_all_chains_and_follow_each_other(
    split: GemmConfig, weight: tuple[int, int], rows: int, gpu: Multiprocessors | None
) -> None:
    way = ManyConfig.of(split, weight, rows, ROOMS[gpu], gpu)
    assume(way is not None)
    assert way is not None
    assert split.warps % way.cluster == 0
    (blocks,) = way.grid(weight[0])
    assert blocks % way.cluster == 0
    assert blocks // way.cluster // way.row_groups * 16 * way.tiles >= weight[0]
    assert way.tiles % way.warp_tiles == 0 and way.tiles <= TILES
    if gpu is None or gpu.capability < (9, 0):
        assert way.cluster == 1


@pytest.mark.parametrize(
    ("weight", "split", "rows", "cluster", "stages", "tiles"),
    [
        ((6144, 4096), GemmConfig(16, 2), 32, 4, 5, 8),
        ((4096, 4096), GemmConfig(16, 2), 32, 4, 5, 6),
        ((28672, 4096), GemmConfig(16, 2), 32, 1, 4, 7),
        ((128256, 4096), GemmConfig(16, 2), 32, 1, 4, 8),
        ((4096, 14336), GemmConfig(8, 4), 32, 4, 5, 6),
        ((6144, 4096), GemmConfig(16, 2), 64, 4, 4, 8),
        ((28672, 4096), GemmConfig(16, 2), 64, 1, 4, 8),
        ((4096, 14336), GemmConfig(8, 4), 64, 8, 4, 8),
        ((6144, 8192), GemmConfig(8, 4), 48, 8, 4, 8),
    ],
)
def test_weights_of_8b_size_are_divided_as_was_fastest_on_an_h200(
    weight: tuple[int, int], split: GemmConfig, rows: int, cluster: int, stages: int, tiles: int
) -> None:
    way = ManyConfig.of(split, weight, rows, ROOMS[H200], H200)
    assert way is not None and (way.cluster, way.stages, way.tiles) == (cluster, stages, tiles)


@pytest.mark.parametrize(
    ("weight", "rows"),
    [
        ((28672, 4096), MANY_ROWS),  # few rows
        ((576, 1536), 64),  # a small weight
        ((4096, 4096), 64),  # too small a weight for two blocks' work in one
        ((28672, 4096 + 32), 64),  # k is no multiple of a slice
    ],
)
def test_what_matmul_rows_does_is_left_to_it(weight: tuple[int, int], rows: int) -> None:
    assert ManyConfig.of(GemmConfig(16, 2), weight, rows, ROOMS[H200], H200) is None
