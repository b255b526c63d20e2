"""`matmul_many.cu` gives the bits of `matmul_rows.cu`, however its work is divided. Clusters are for a GPU alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.device import multiprocessors
from specgate.backends.eagle3.cupy.kernels.matmul.gemm_config import ROW_TILE, GemmConfig
from specgate.backends.eagle3.cupy.kernels.matmul.many_config import CLUSTERED, ManyConfig
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import Epilogue, MatmulRows, PreNormRows
from tests.eagle3.cupy.kernels.device import normal, poisoned, rows_of


@dataclass(frozen=True, slots=True)
class Case:
    """A product of `rows` rows, of which `active` are multiplied, and how it is divided."""

    n: int
    k: int
    epilogue: Epilogue
    split: GemmConfig
    rows: int
    active: int
    way: ManyConfig
    extra: bool = False
    """Whether it also has what its epilogue may: a norm before and after it, choices."""


def way_of(
    rows: int, cluster: int = 1, stages: int = 4, warp_tiles: int = 2, tiles: int = 8, groups: int = 1
) -> ManyConfig:
    return ManyConfig(-(-rows // (groups * ROW_TILE)), groups, cluster, stages, warp_tiles, tiles)


PLAIN, RESIDUAL, SWIGLU = Epilogue.PLAIN, Epilogue.RESIDUAL, Epilogue.SWIGLU
CASES = [
    Case(256, 512, PLAIN, GemmConfig(4, 2), 32, 32, way_of(32)),
    Case(250, 576, PLAIN, GemmConfig(4, 2), 32, 29, way_of(32, stages=3), extra=True),  # odd columns, an odd last turn
    Case(112, 640, SWIGLU, GemmConfig(4, 1), 24, 23, way_of(24, warp_tiles=1, tiles=7), extra=True),
    Case(99, 1024, SWIGLU, GemmConfig(8, 2), 32, 32, way_of(32, stages=6, tiles=14)),
    Case(520, 1152, RESIDUAL, GemmConfig(4, 4), 17, 17, way_of(17, tiles=16), extra=True),
    Case(136, 1152, RESIDUAL, GemmConfig(8, 4), 40, 33, way_of(40, stages=5)),  # half a tile of rows for some warps
    Case(136, 512, RESIDUAL, GemmConfig(4, 1), 64, 9, way_of(64, stages=2), extra=True),
    Case(96, 768, PLAIN, GemmConfig(4, 2), 128, 100, way_of(128, tiles=6, groups=2)),
]
CLUSTERS = [
    Case(250, 1216, PLAIN, GemmConfig(8, 2), 32, 29, way_of(32, cluster=2, stages=3), extra=True),
    Case(520, 4096, RESIDUAL, GemmConfig(16, 2), 32, 32, way_of(32, cluster=4, stages=6, tiles=12), extra=True),
    Case(4096, 14336, RESIDUAL, GemmConfig(8, 4), 32, 32, way_of(32, cluster=4, stages=5, tiles=8), extra=True),
    Case(520, 1152, RESIDUAL, GemmConfig(8, 4), 24, 20, way_of(24, cluster=8, warp_tiles=1, tiles=4), extra=True),
    Case(136, 1152, RESIDUAL, GemmConfig(8, 4), 40, 33, way_of(40, cluster=8), extra=True),
    Case(112, 4096, SWIGLU, GemmConfig(16, 2), 128, 77, way_of(128, cluster=4, groups=2), extra=True),
]


def results(case: Case, device: str, many: bool) -> list[Tensor]:
    """All that the product leaves: by `matmul_many.cu`, or by `matmul_rows.cu`."""
    n, k, rows, extra = case.n, case.k, case.rows, case.extra
    swiglu, feeds = case.epilogue is SWIGLU, extra and case.epilogue is RESIDUAL
    chooses = extra and case.epilogue is PLAIN
    x, weight = normal(rows, k, device=device), normal((1 + swiglu) * n, k, seed=1, device=device)
    x[case.active :] = float("nan")
    pre_norm = PreNormRows(x, normal(rows, k // 8, dtype=torch.float32, device=device).square())
    out = normal(rows, n, dtype=torch.bfloat16 if swiglu else torch.float32, seed=2, device=device)
    left = PreNormRows(poisoned(rows, n, device=device), poisoned(rows, n // 8, dtype=torch.float32, device=device))
    choices = torch.zeros(rows, dtype=torch.int64, device=device)
    with patch.object(ManyConfig, "of", classmethod(lambda *_, **__: None)):
        kernel = MatmulRows(
            *(n, k, case.epilogue, rows, case.split if many else case.split.at(rows)),
            scaled=extra and not feeds,
            feeds_norm=feeds,
            chooses=chooses,
            many=case.way if many else None,
        )
    assert kernel.name == ("matmul_many" if many else "matmul_rows")
    kernel(
        out,
        pre_norm if kernel.scaled else x,
        weight,
        rows_of(range(case.active), 1, slots=rows, device=device),
        eps=1e-5,
        norm=(left, normal(n, seed=3, device=device)) if feeds else None,
        choices=choices if chooses else None,
    )
    return [out, choices, *((left.normed, left.squares) if feeds else ())]


def same(case: Case, device: str) -> bool:
    got, want = results(case, device, many=True), results(case, device, many=False)
    assert got[0][: case.active].isfinite().all()
    return all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(got, want, strict=True))


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
