"""`matmul_wgmma.cu` agrees with float64, and gives a row the same bits whatever the rows and however work is moved."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specgate.backends.eagle3.cupy.device import Multiprocessors
from specgate.backends.eagle3.cupy.kernels.matmul import matmul_rows
from specgate.backends.eagle3.cupy.kernels.matmul.gemm_config import MAX_ROWS, ROW_GROUP, ROW_TILE
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import MatmulRows, maxima_of
from specgate.backends.eagle3.cupy.kernels.matmul.wgmma_config import BOXES, CLUSTERS, STAGES, WgmmaConfig, row_tiles_of
from specgate.backends.eagle3.cupy.kernels.operands import tensor_map
from specgate.errors import BackendError
from tests.eagle3.cupy import oracles
from tests.eagle3.cupy.kernels.device import needs_wgmma, normal, poisoned, relative_error, rows_of
from tests.eagle3.cupy.kernels.matmul.products import PLAIN, RESIDUAL, SWIGLU, Case, before_of, operands, results
from tests.eagle3.cupy.kernels.matmul.test_maxima import maxima_beside

CASES = [
    Case(128, 64, PLAIN, 16, 16, WgmmaConfig(stages=2)),
    Case(250, 608, PLAIN, 32, 29, WgmmaConfig(stages=3, chain=4), extra=True),  # odd columns, half a piece
    Case(99, 352, SWIGLU, 24, 23, WgmmaConfig(stages=2, chain=4)),
    Case(200, 1024, SWIGLU, 48, 41, WgmmaConfig(boxes=4, stages=2), extra=True),
    Case(136, 640, RESIDUAL, 64, 9, WgmmaConfig(boxes=4, stages=2, delay_dependents=1), extra=True),
    Case(520, 288, RESIDUAL, 17, 17, WgmmaConfig(stages=9), extra=True),  # more stages than pieces
    Case(96, 320, PLAIN, 128, 100, WgmmaConfig(stages=3)),  # two groups of rows
    Case(96, 320, PLAIN, 128, 60, WgmmaConfig(stages=3, delay_dependents=1)),  # of which one has none
]
SHARED_K = [
    Case(250, 1216, PLAIN, 32, 29, WgmmaConfig(cluster=2), extra=True),
    Case(520, 4096, RESIDUAL, 64, 64, WgmmaConfig(boxes=4, cluster=8, stages=3), extra=True),
    Case(4096, 14336, RESIDUAL, 64, 50, WgmmaConfig(boxes=2, cluster=4), extra=True),
    Case(1000, 4096, SWIGLU, 24, 20, WgmmaConfig(boxes=4, cluster=8, stages=5), extra=True),
    Case(128256, 4096, PLAIN, 64, 64, WgmmaConfig(boxes=4, stages=5), extra=True),
    Case(6144, 4096, PLAIN, 256, 77, WgmmaConfig(cluster=2)),
]


def expected(case: Case, device: str) -> Tensor:
    """float64 of `out`'s active rows."""
    x, weight, pre_norm = operands(case, device)
    extra, x = case.extra, x[: case.active]
    sums = oracles.matmul_rows(x, weight)
    if extra and case.epilogue is not RESIDUAL:
        sums *= (pre_norm.squares[: case.active].double().sum(1, keepdim=True) / case.k + 1e-5).rsqrt()
    if extra and case.epilogue is not SWIGLU:
        sums += normal(case.n, seed=4, device=device).double()
    if case.epilogue is SWIGLU:
        gate, up = sums.chunk(2, dim=1)
        return torch.nn.functional.silu(gate) * up
    return sums + before_of(case, device)[: case.active].double() if case.epilogue is RESIDUAL else sums


def check(case: Case, device: str) -> None:
    got, active = results(case, device), case.active
    assert relative_error(got["out"][:active], expected(case, device)) < (4e-3 if case.epilogue is SWIGLU else 1e-5)
    assert torch.equal(got["out"][active:], before_of(case, device)[active:])
    if case.extra and case.epilogue is PLAIN:
        best = got["out"][:active].argmax(dim=1)
        assert torch.equal(0xFFFFFFFF - (got["choices"][:active] & 0xFFFFFFFF), best)
        assert not got["choices"][active:].any()
    if case.extra and case.epilogue is RESIDUAL:
        stream = got["out"][:active]
        assert torch.equal(got["normed"][:active], (stream * normal(case.n, seed=3, device=device).float()).bfloat16())
        assert relative_error(got["squares"][:active], stream.square().reshape(active, -1, 8).sum(-1)) < 1e-6
        assert got["normed"][active:].isnan().all()


def same_bits(case: Case, other: Case, device: str) -> bool:
    """Whether both leave the same in the rows that are active in both."""
    one, two, rows = results(case, device), results(other, device), min(case.active, other.active)
    return all(torch.equal(one[name][:rows].view(torch.uint8), two[name][:rows].view(torch.uint8)) for name in one)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_product_of_a_warpgroup_agrees_with_float64_in_all_that_it_leaves(case: Case, device: str) -> None:
    needs_wgmma(device)
    check(case, device)


@pytest.mark.parametrize("rows", [1, 17, 33, 70])
@pytest.mark.parametrize("case", [CASES[1], CASES[3], CASES[5]], ids=["plain", "swiglu", "residual"])
def test_a_rows_bits_do_not_depend_on_the_rows_of_the_step(case: Case, rows: int, device: str) -> None:
    needs_wgmma(device)
    assert same_bits(replace(case, rows=rows, active=rows), replace(case, rows=40, active=40), device)


@pytest.mark.parametrize("moved", [{"boxes": 4}, {"stages": 2}, {"delay_dependents": 1}], ids=str)
def test_how_work_is_moved_changes_no_bit(moved: dict[str, int], device: str) -> None:
    needs_wgmma(device)
    config = WgmmaConfig(stages=5, chain=4)
    case = Case(520, 608, RESIDUAL, 24, 21, config, extra=True)
    assert same_bits(case, replace(case, config=replace(config, **moved)), device)


def test_a_sum_is_taken_over_chains_of_pieces(device: str) -> None:
    """One chain, as a tensor core adds it up, would round otherwise."""
    needs_wgmma(device)
    case = Case(64, 2048, PLAIN, 16, 16, WgmmaConfig(chain=4))
    longer = replace(case, config=WgmmaConfig(chain=16))
    assert not torch.equal(results(case, device)["out"], results(longer, device)["out"])
    for each in (case, longer):
        check(each, device)


def test_the_largest_of_every_eight_results_is_left_beside_the_same_bits(device: str) -> None:
    needs_wgmma(device)
    case = Case(250, 192, PLAIN, 70, 66, WgmmaConfig(stages=2))
    x, weight, _ = operands(case, device)
    out = poisoned(case.rows, case.n, dtype=torch.float32, device=device)
    maxima = torch.full((case.rows, maxima_of(case.n)), 77, dtype=torch.int32, device=device)
    kernel = MatmulRows(case.n, case.k, PLAIN, case.rows, case.config, maxima=True)
    assert kernel.spec.stem == "maxima_wgmma" and kernel.name == "matmul_wgmma"
    kernel(out, x, weight, rows_of(range(case.active), 1, slots=case.rows, device=device), maxima=maxima)
    assert torch.equal(out[: case.active], results(case, device)["out"][: case.active])
    assert torch.equal(maxima[: case.active], maxima_beside(out[: case.active], behind=77))
    assert (maxima[case.active :] == 77).all()


@pytest.mark.gpu
@pytest.mark.parametrize("case", SHARED_K, ids=str)
def test_clusters_share_k_and_leave_the_same(case: Case) -> None:
    needs_wgmma("cuda")
    with torch.inference_mode():
        check(case, "cuda")
        for rows in (1, 24, 33):
            assert same_bits(replace(case, rows=rows, active=rows), case, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize(("n", "k"), [(4096, 4096), (1000, 608)])
def test_every_number_of_rows_agrees_with_float64_and_with_the_bits_of_64(n: int, k: int) -> None:
    needs_wgmma("cuda")
    whole = Case(n, k, RESIDUAL, 64, 64, WgmmaConfig(cluster=2, stages=3), extra=True)
    with torch.inference_mode():
        for rows in range(1, 65):
            check(replace(whole, rows=rows, active=rows), "cuda")
            assert same_bits(replace(whole, rows=rows, active=rows), whole, "cuda")


@pytest.mark.parametrize("capability", [(8, 0), (10, 0), (12, 0)])
def test_another_gpu_is_refused_with_its_capability(
    capability: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matmul_rows, "multiprocessors", lambda: Multiprocessors(100, 228 * 1024, capability))
    message = "products by wgmma need compute capability 9.0, this GPU has {}.{}".format(*capability)
    with pytest.raises(ValueError, match=message):
        MatmulRows(64, 64, PLAIN, 32, WgmmaConfig())


@pytest.mark.parametrize(
    "config",
    [
        *(WgmmaConfig(boxes=3), WgmmaConfig(stages=1), WgmmaConfig(cluster=3), WgmmaConfig(chain=5)),
        *(WgmmaConfig(delay_dependents=2), WgmmaConfig(cluster=8)),
    ],
    ids=str,
)
def test_a_division_that_the_kernel_has_not_is_refused(config: WgmmaConfig) -> None:
    with pytest.raises(ValueError, match=r"WgmmaConfig\(.*\): not for a weight of \[64, 576\]"):
        MatmulRows(64, 576, PLAIN, 32, config)  # nine pieces are none for the eighth of blocks that take two each


@given(st.integers(1, MAX_ROWS))
def test_rows_are_divided_into_groups_of_twos_of_tiles_with_room_for_all(rows: int) -> None:
    groups, tiles = row_tiles_of(rows)
    assert tiles in (2, 4, 6, 8)
    assert groups * tiles * ROW_TILE >= rows > (groups - 1) * ROW_GROUP
    assert tiles == 2 or groups * (tiles - 2) * ROW_TILE < rows


@given(
    st.sampled_from(BOXES), st.sampled_from(STAGES), st.sampled_from((2, 4, 6, 8)), st.integers(1, 300_000),
    st.sampled_from(CLUSTERS),
)  # fmt: skip
def test_a_block_asks_for_its_stages_and_barriers_and_the_grid_has_a_cluster_for_all_rows_of_weight(
    boxes: int, stages: int, tiles: int, n: int, cluster: int
) -> None:
    config = WgmmaConfig(boxes, stages, cluster)
    stage = (64 * boxes + 8 * tiles) * 128  # rows of weight and of x, of 64 numbers of two bytes
    assert config.shared_bytes(tiles) >= stages * (stage + 2 * 8)
    assert config.shared_bytes(tiles) >= 64 * boxes * 8 * tiles * 4  # the sums in its place
    assert config.shared_bytes(tiles) <= max(stages * (stage + 16), 256 * boxes * 8 * tiles) + 127
    (blocks,) = config.grid(n, 3)
    assert blocks % (3 * cluster) == 0
    assert (blocks // (3 * cluster) - 1) * 64 * boxes < n <= blocks // (3 * cluster) * 64 * boxes


def test_a_matrix_is_handed_over_as_a_map_at_a_place_that_the_gpu_reads_maps_at(device: str) -> None:
    case = Case(99, 352, SWIGLU, 24, 23, WgmmaConfig())
    taken = MatmulRows(case.n, case.k, SWIGLU, case.rows, case.config).operands_of("matmul_wgmma")
    assert {field.name: field.box for field in taken.fields if field.box} == {"weight": (64, 64), "x": (32, 64)}
    assert taken.struct.weight.offset % 64 == taken.struct.x.offset % 64 == ctypes.sizeof(taken.struct) % 64 == 0
    x, weight, _ = operands(case, device)
    out, rows = normal(case.rows, case.n, device=device), rows_of(range(case.rows), 1, device=device)
    kernel = MatmulRows(case.n, case.k, SWIGLU, case.rows, case.config)
    for wrong, of_x, of_weight in (
        ("weight", x, weight[1:]),
        ("weight", x, weight.float()),
        ("x", x[:, ::2], weight),
        ("x", x[1:], weight),
    ):
        with pytest.raises(ValueError, match=f"matmul_wgmma: {wrong}: "):
            kernel(out, of_x, of_weight, rows)


def test_the_driver_is_told_a_matrix_columns_first_and_its_failure_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from cuda.bindings import driver

    matrix, taken, status = normal(5, 96, device="cpu"), list[Any](), [driver.CUresult.CUDA_SUCCESS]

    def encode(*arguments: Any) -> tuple[Any, Any]:
        taken.append(arguments)
        return status[0], driver.CUtensorMap()

    monkeypatch.setattr(driver, "cuTensorMapEncodeTiled", encode)
    assert [*tensor_map(matrix, (32, 64))] == [0] * 16
    ((kind, rank, address, sizes, strides, box, steps, _, swizzle, _, _),) = taken
    assert kind.name.endswith("BFLOAT16") and rank == 2 and address == matrix.data_ptr()
    numbers = [[int(number) for number in each] for each in (sizes, strides, box, steps)]
    assert numbers == [[96, 5], [2 * 96], [64, 32], [1, 1]]
    assert swizzle.name.endswith("SWIZZLE_128B")
    status[0] = driver.CUresult.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(BackendError, match=r"a map of \[5, 96\] in boxes of \[32, 64\]: CUDA_ERROR_INVALID_VALUE"):
        tensor_map(matrix, (32, 64))
