from __future__ import annotations

import pytest
import torch

from specgate.backends.cupy_eagle3.bench import oracles
from specgate.backends.cupy_eagle3.kernels.matmul_rows import Epilogue, MatmulRows
from tests.backends.cupy_eagle3.kernels.device import normal, poisoned, relative_error, rows_of

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
    x, weight = normal(64, k), normal(n, k, seed=1)
    for rows in (1, 4, 17, 64):
        assert (
            relative_error(product(n, k, rows, x, weight, Epilogue.PLAIN), oracles.matmul_rows(x[:rows], weight)) < 1e-5
        )


@pytest.mark.parametrize(("n", "k"), SHAPES)
@pytest.mark.parametrize("epilogue", [Epilogue.PLAIN, Epilogue.SWIGLU])
def test_a_rows_bits_do_not_depend_on_how_many_rows_share_the_step(n: int, k: int, epilogue: Epilogue) -> None:
    parts = 2 if epilogue is Epilogue.SWIGLU else 1
    x, weight = normal(64, k), normal(parts * n, k, seed=1)
    whole = product(n, k, 64, x, weight, epilogue)
    for rows in (1, 2, 4, 6, 8, 9, 20, 48):
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
