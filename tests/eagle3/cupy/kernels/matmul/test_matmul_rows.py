from __future__ import annotations

from itertools import product as product_of

import pytest
import torch

from specgate.backends.eagle3.cupy.device import RESERVED_SHARED, multiprocessors
from specgate.backends.eagle3.cupy.kernels.loader import function
from specgate.backends.eagle3.cupy.kernels.matmul.gemm_config import DECLARED, GemmConfig
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import Epilogue, MatmulRows, PreNormRows
from specgate.backends.eagle3.cupy.kernels.matmul.wgmma_config import WgmmaConfig
from specgate.backends.eagle3.cupy.tuning.gemm_weight import candidates
from tests.eagle3.cupy import oracles
from tests.eagle3.cupy.kernels.device import needs_wgmma, normal, poisoned, relative_error, rows_of

pytestmark = pytest.mark.gpu

# (N, K) of SmolLM2, of Llama-3.1-8B, of a gpt-oss draft, and sizes that divide by little.
SHAPES = [(960, 576), (576, 1536), (49152, 576), (6144, 4096), (4096, 14336), (17280, 2880), (1001, 96), (33, 32)]


def product(n: int, k: int, rows: int, x: torch.Tensor, weight: torch.Tensor, epilogue: Epilogue) -> torch.Tensor:
    """The first `rows` rows of x, as a step with so many rows."""
    dtype = torch.bfloat16 if epilogue is Epilogue.SWIGLU else torch.float32
    out = poisoned(rows, n, dtype=dtype)
    MatmulRows(n, k, epilogue, rows)(out, x, weight, rows_of(range(rows), 1))
    return out


@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_a_product_of_few_rows_agrees_with_float64(n: int, k: int) -> None:
    x, weight = normal(200, k), normal(n, k, seed=1)
    for rows in (1, 4, 17, 64, 200):
        assert (
            relative_error(product(n, k, rows, x, weight, Epilogue.PLAIN), oracles.matmul_rows(x[:rows], weight)) < 1e-5
        )


@pytest.mark.parametrize(("n", "k"), SHAPES)
@pytest.mark.parametrize("epilogue", [Epilogue.PLAIN, Epilogue.SWIGLU])
def test_a_rows_bits_do_not_depend_on_how_many_rows_share_the_step(n: int, k: int, epilogue: Epilogue) -> None:
    parts = 2 if epilogue is Epilogue.SWIGLU else 1
    x, weight = normal(256, k), normal(parts * n, k, seed=1)
    whole = product(n, k, 256, x, weight, epilogue)
    for rows in (1, 2, 4, 6, 8, 9, 20, 48, 64, 65, 100, 128, 250):
        assert torch.equal(product(n, k, rows, x, weight, epilogue), whole[:rows])
    shifted = torch.cat((x[5:6], x[:63]))
    assert torch.equal(product(n, k, 1, shifted, weight, epilogue)[0], whole[5])


@pytest.mark.parametrize(("n", "k"), [(1536, 576), (14336, 4096), (17280, 2880)])
def test_swiglu_is_silu_of_the_gate_times_up(n: int, k: int) -> None:
    x, weight = normal(40, k), normal(2 * n, k, scale=k**-0.5, seed=1)
    for rows in (1, 8, 40):
        assert relative_error(product(n, k, rows, x, weight, Epilogue.SWIGLU), oracles.swiglu(x[:rows], weight)) < 4e-3


def test_the_residual_epilogue_adds_to_what_is_there() -> None:
    x, weight, before = normal(24, 1536), normal(576, 1536, seed=1), normal(24, 576, dtype=torch.float32)
    out = before.clone()
    MatmulRows(576, 1536, Epilogue.RESIDUAL, 24)(out, x, weight, rows_of(range(24), 1))
    assert relative_error(out, before.double() + oracles.matmul_rows(x, weight)) < 1e-5


@pytest.mark.parametrize(("n", "k"), [(5120, 2880), (2880, 4096), (1001, 96)])
def test_a_bias_is_added_to_a_products_sum_once(n: int, k: int) -> None:
    x, weight, bias = normal(20, k), normal(n, k, scale=k**-0.5, seed=1), normal(n, seed=2)
    for rows in (20, 1):
        for config in (None, GemmConfig(8, 1, 2, 1, passes=3)):
            out = poisoned(rows, n, dtype=torch.float32)
            kernel = MatmulRows(n, k, Epilogue.PLAIN, rows, config, biased=True)
            kernel(out, x, weight, rows_of(range(rows), 1), bias=bias)
            assert relative_error(out, oracles.matmul_rows(x[:rows], weight) + bias.double()) < 1e-5


def test_a_bias_comes_after_the_division_and_before_the_next_norm() -> None:
    n, k = 2880, 4096
    x, weight, bias = normal(20, k, dtype=torch.float32, scale=3.0), normal(n, k, scale=k**-0.5, seed=1), normal(n)
    norm_weight, next_norm = normal(k, seed=2), normal(n, seed=3)
    before, rows = normal(20, n, dtype=torch.float32), rows_of(range(20), 1)
    want = before.double() + oracles.matmul_rows(oracles.rms_norm(x, norm_weight, 1e-5), weight) + bias.double()
    stream, left = before.clone(), PreNormRows(poisoned(20, n), poisoned(20, n // 8, dtype=torch.float32))
    kernel = MatmulRows(n, k, Epilogue.RESIDUAL, 20, scaled=True, feeds_norm=True, biased=True)
    kernel(stream, pre_norm_of(x, norm_weight), weight, rows, eps=1e-5, norm=(left, next_norm), bias=bias)
    assert relative_error(stream, want) < 6e-3
    assert torch.equal(left.normed, (stream * next_norm.float()).bfloat16())


def test_rows_of_slots_that_are_done_are_neither_computed_nor_written() -> None:
    x, weight = normal(32, 576), normal(960, 576, seed=1)
    full = product(960, 576, 32, x, weight, Epilogue.PLAIN)
    for active in (0, 1, 3):
        out = poisoned(32, 960, dtype=torch.float32)
        MatmulRows(960, 576, Epilogue.PLAIN, 32)(out, x, weight, rows_of(range(active), 4, slots=8))
        assert torch.equal(out[: 4 * active], full[: 4 * active])
        assert out[4 * active :].isnan().all()


def test_garbage_beside_a_row_does_not_reach_it() -> None:
    x, weight = normal(8, 576), normal(960, 576, seed=1)
    alone = product(960, 576, 1, x, weight, Epilogue.PLAIN)
    x[1:] = float("nan")
    assert torch.equal(product(960, 576, 1, x, weight, Epilogue.PLAIN), alone)


def test_more_rows_than_a_launcher_is_made_for_are_refused() -> None:
    with pytest.raises(ValueError, match="8 rows for a launcher of 4"):
        MatmulRows(64, 64, Epilogue.PLAIN, 4)(
            poisoned(8, 64, dtype=torch.float32), normal(8, 64), normal(64, 64), rows_of(range(8), 1)
        )


def pre_norm_of(x: torch.Tensor, weight: torch.Tensor) -> PreNormRows:
    """As the kernels leave it: products rounded once, and sums of squares over eight."""
    return PreNormRows((x * weight.float()).bfloat16(), x.square().reshape(len(x), -1, 8).sum(-1))


@pytest.mark.parametrize(("n", "k"), [(960, 576), (6144, 4096), (1001, 96)])
@pytest.mark.parametrize("epilogue", [Epilogue.PLAIN, Epilogue.SWIGLU])
def test_undivided_rows_are_divided_by_their_root_mean_square(n: int, k: int, epilogue: Epilogue) -> None:
    parts, dtype = (2, torch.bfloat16) if epilogue is Epilogue.SWIGLU else (1, torch.float32)
    x, norm_weight = normal(20, k, dtype=torch.float32, scale=3.0), normal(k, seed=2)
    weight = normal(parts * n, k, scale=k**-0.5, seed=1)
    got = []
    for rows in (20, 3):
        out = poisoned(rows, n, dtype=dtype)
        kernel = MatmulRows(n, k, epilogue, rows, scaled=True)
        kernel(out, pre_norm_of(x, norm_weight), weight, rows_of(range(rows), 1), eps=1e-5)
        got.append(out)
    want = oracles.rms_norm(x, norm_weight, 1e-5)
    oracle = oracles.swiglu(want, weight) if epilogue is Epilogue.SWIGLU else oracles.matmul_rows(want, weight)
    assert relative_error(got[0], oracle) < 6e-3
    assert torch.equal(got[1], got[0][:3])


@pytest.mark.parametrize(("n", "k"), [(576, 1536), (4096, 14336), (2880, 96)])
def test_a_residual_leaves_the_next_norms_input(n: int, k: int) -> None:
    x, weight, norm_weight = normal(20, k), normal(n, k, scale=k**-0.5, seed=1), normal(n, seed=2)
    before = normal(20, n, dtype=torch.float32)
    for rows in (20, 1):
        stream = before.clone()
        left = PreNormRows(poisoned(20, n), poisoned(20, n // 8, dtype=torch.float32))
        kernel = MatmulRows(n, k, Epilogue.RESIDUAL, rows, feeds_norm=True)
        kernel(stream, x, weight, rows_of(range(rows), 1), norm=(left, norm_weight))
        assert relative_error(stream[:rows], before[:rows].double() + oracles.matmul_rows(x[:rows], weight)) < 1e-5
        want = pre_norm_of(stream, norm_weight)
        assert torch.equal(left.normed[:rows], want.normed[:rows])
        assert relative_error(left.squares[:rows], want.squares[:rows]) < 1e-6
        assert left.normed[rows:].isnan().all() and left.squares[rows:].isnan().all()


@pytest.mark.parametrize(("n", "k"), [(960, 576), (6144, 4096), (33, 32)])
def test_every_configuration_agrees_with_float64_and_with_itself(n: int, k: int) -> None:
    x, weight = normal(40, k), normal(n, k, seed=1)
    for config in candidates(n, k)[::3]:
        got = []
        for rows in (40, 1, 9):
            out = poisoned(rows, n, dtype=torch.float32)
            MatmulRows(n, k, Epilogue.PLAIN, rows, config)(out, x, weight, rows_of(range(rows), 1))
            got.append(out)
        assert relative_error(got[0], oracles.matmul_rows(x, weight)) < 1e-5
        assert torch.equal(got[1], got[0][:1]) and torch.equal(got[2], got[0][:9])


MOVED = [
    GemmConfig(8, 2, stages, tiles, passes, held)
    for stages, tiles, passes, held in product_of((1, 2, 3), (1, 3), (1, 2, 5), (0, 1))
]


@pytest.mark.parametrize("rows", [1, 4, 16, 40])
def test_how_work_is_moved_changes_no_bit_of_a_divided_product(rows: int) -> None:
    """Neither passes, tiles, stages nor when the next kernel starts: at any number of rows."""
    n, k = 1001, 1056
    x, norm_weight = normal(rows, k, dtype=torch.float32, scale=3.0), normal(k, seed=2)
    weight = normal(n, k, scale=k**-0.5, seed=1)

    def divided(config: GemmConfig) -> torch.Tensor:
        out = poisoned(rows, n, dtype=torch.float32)
        kernel = MatmulRows(n, k, Epilogue.PLAIN, rows, config, scaled=True)
        kernel(out, pre_norm_of(x, norm_weight), weight, rows_of(range(rows), 1), eps=1e-5)
        return out

    usual = divided(GemmConfig(8, 2))
    assert relative_error(usual, oracles.matmul_rows(oracles.rms_norm(x, norm_weight, 1e-5), weight)) < 6e-3
    assert all(torch.equal(divided(config), usual) for config in MOVED)


@pytest.mark.parametrize("rows", [1, 4, 16, 40])
def test_how_work_is_moved_changes_no_bit_of_what_a_residual_leaves(rows: int) -> None:
    n, k = 1000, 1056
    x, weight, norm_weight = normal(rows, k), normal(n, k, scale=k**-0.5, seed=1), normal(n, seed=2)
    before = normal(rows, n, dtype=torch.float32)

    def left(config: GemmConfig) -> tuple[torch.Tensor, ...]:
        stream, pre_norm = before.clone(), PreNormRows(poisoned(rows, n), poisoned(rows, n // 8, dtype=torch.float32))
        kernel = MatmulRows(n, k, Epilogue.RESIDUAL, rows, config, feeds_norm=True)
        kernel(stream, x, weight, rows_of(range(rows), 1), norm=(pre_norm, norm_weight))
        return stream, pre_norm.normed, pre_norm.squares

    usual = left(GemmConfig(8, 2))
    assert relative_error(usual[0], before.double() + oracles.matmul_rows(x, weight)) < 1e-5
    for config in MOVED:
        assert all(torch.equal(a, b) for a, b in zip(left(config), usual, strict=True))


@pytest.mark.parametrize(
    ("n", "k", "config"),
    [(4096, 4096, GemmConfig(8, 4, 2)), (6144, 4096, GemmConfig(8, 2, 2)), (28672, 4096, GemmConfig(4, 1, 2, 2))],
)
def test_an_sm_has_room_for_its_share_of_a_large_products_blocks_and_for_no_more(
    n: int, k: int, config: GemmConfig
) -> None:
    from cuda.bindings import driver

    kernel = MatmulRows(n, k, Epilogue.PLAIN, 4, config)
    pointer = function(kernel.spec, "matmul_rows", torch.cuda.current_device(), kernel.shared_bytes)
    status, at_once = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(
        pointer, 32 * kernel.config.warps, kernel.shared_bytes
    )
    assert status == driver.CUresult.CUDA_SUCCESS
    gpu = multiprocessors()
    assert gpu is not None
    share, needed = -(-kernel.blocks // gpu.count), kernel.config.shared_bytes(k, 1)
    assert at_once == min(share, gpu.shared_memory // (needed + DECLARED + RESERVED_SHARED))


@pytest.mark.parametrize(("rows", "config"), [(4, GemmConfig()), (32, WgmmaConfig())], ids=["mma", "wgmma"])
def test_products_that_feed_each_other_do_not_overtake_each_other(rows: int, config: GemmConfig | WgmmaConfig) -> None:
    """A kernel may start while the one before it ends; one that read too early would break the repetition's bits. What
    wgmma copies by TMA has to wait like what others load.
    """
    if isinstance(config, WgmmaConfig):
        needs_wgmma("cuda")
    n = 1024
    weight, x, listed = normal(n, n, scale=n**-0.5, seed=1), normal(rows, n), rows_of(range(rows), 1)
    kernel = MatmulRows(n, n, Epilogue.RESIDUAL, rows, config, feeds_norm=True)
    norm_weight = torch.ones(n, dtype=torch.bfloat16, device="cuda")

    def chain(wait: bool) -> torch.Tensor:
        stream = torch.zeros(rows, n, device="cuda")
        buffers = [PreNormRows(x.clone(), poisoned(rows, n // 8, dtype=torch.float32)) for _ in range(2)]
        for step in range(100):
            kernel(stream, buffers[step % 2].normed, weight, listed, norm=(buffers[(step + 1) % 2], norm_weight))
            if wait:
                torch.cuda.synchronize()
        return stream

    slow = chain(wait=True)
    assert slow.isfinite().all()
    assert all(torch.equal(chain(wait=False), slow) for _ in range(5))
