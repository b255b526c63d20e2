"""`matmul_many.cu` gives the bits of `matmul_rows.cu`, however its work is divided. Clusters are for a GPU alone."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import pytest
import torch

from specgate.backends.eagle3.cupy.device import multiprocessors
from specgate.backends.eagle3.cupy.kernels.matmul.gemm_config import ROW_TILE, GemmConfig
from specgate.backends.eagle3.cupy.kernels.matmul.many_config import CLUSTERED, ManyConfig
from tests.eagle3.cupy.kernels.matmul.products import PLAIN, RESIDUAL, SWIGLU, Case, results


def way_of(
    rows: int, cluster: int = 1, stages: int = 4, warp_tiles: int = 2, tiles: int = 8, groups: int = 1
) -> ManyConfig:
    return ManyConfig(-(-rows // (groups * ROW_TILE)), groups, cluster, stages, warp_tiles, tiles)


CASES = [
    Case(256, 512, PLAIN, 32, 32, GemmConfig(4, 2), way=way_of(32)),
    # Odd columns, an odd last turn.
    Case(250, 576, PLAIN, 32, 29, GemmConfig(4, 2), extra=True, way=way_of(32, stages=3)),
    Case(112, 640, SWIGLU, 24, 23, GemmConfig(4, 1), extra=True, way=way_of(24, warp_tiles=1, tiles=7)),
    Case(99, 1024, SWIGLU, 32, 32, GemmConfig(8, 2), way=way_of(32, stages=6, tiles=14)),
    Case(520, 1152, RESIDUAL, 17, 17, GemmConfig(4, 4), extra=True, way=way_of(17, tiles=16)),
    Case(136, 1152, RESIDUAL, 40, 33, GemmConfig(8, 4), way=way_of(40, stages=5)),  # half a tile of rows for some warps
    Case(136, 512, RESIDUAL, 64, 9, GemmConfig(4, 1), extra=True, way=way_of(64, stages=2)),
    Case(96, 768, PLAIN, 128, 100, GemmConfig(4, 2), way=way_of(128, tiles=6, groups=2)),
]
CLUSTERS = [
    Case(250, 1216, PLAIN, 32, 29, GemmConfig(8, 2), extra=True, way=way_of(32, cluster=2, stages=3)),
    Case(520, 4096, RESIDUAL, 32, 32, GemmConfig(16, 2), extra=True, way=way_of(32, cluster=4, stages=6, tiles=12)),
    Case(4096, 14336, RESIDUAL, 32, 32, GemmConfig(8, 4), extra=True, way=way_of(32, cluster=4, stages=5, tiles=8)),
    Case(520, 1152, RESIDUAL, 24, 20, GemmConfig(8, 4), extra=True, way=way_of(24, cluster=8, warp_tiles=1, tiles=4)),
    Case(136, 1152, RESIDUAL, 40, 33, GemmConfig(8, 4), extra=True, way=way_of(40, cluster=8)),
    Case(112, 4096, SWIGLU, 128, 77, GemmConfig(16, 2), extra=True, way=way_of(128, cluster=4, groups=2)),
]


def same(case: Case, device: str) -> bool:
    assert isinstance(case.config, GemmConfig)
    with patch.object(ManyConfig, "of", classmethod(lambda *_, **__: None)):
        got = results(case, device)
        want = results(replace(case, config=case.config.at(case.rows), way=None), device)
    assert got["out"][: case.active].isfinite().all()
    return all(torch.equal(got[name].view(torch.uint8), want[name].view(torch.uint8)) for name in got)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_bits_are_those_of_the_kernel_for_few_rows(case: Case, device: str) -> None:
    assert same(case, device)


@pytest.mark.gpu
@pytest.mark.parametrize("case", CLUSTERS, ids=str)
def test_bits_are_those_of_the_kernel_for_few_rows_where_clusters_divide_k(case: Case) -> None:
    gpu = multiprocessors()
    if gpu is None or gpu.capability < CLUSTERED:
        pytest.skip("this GPU has no clusters")
    with torch.inference_mode():
        assert same(case, "cuda")
        assert same(replace(case, active=1), "cuda")
