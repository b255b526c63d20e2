"""Products that leave each row's greedy choice, and the kernel that takes it."""

from __future__ import annotations

import math
import struct

import pytest
import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.matmul.gemm_config import GemmConfig
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import Epilogue, MatmulRows, PreNormRows
from specgate.backends.eagle3.cupy.kernels.rows.launchers import DraftToken, InputWeights
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows
from tests.eagle3.cupy import oracles
from tests.eagle3.cupy.kernels.device import index_of, normal, packed, poisoned, rows_of, state

# Warps, chunks of k, stages, tiles, passes.
CONFIGS = [GemmConfig(*cut) for cut in ((8, 1, 2, 2, 1), (16, 2, 3, 1, 31), (4, 2, 3, 4, 8), (8, 2, 2, 1, 3))]
SHAPES = [(33, 32), (1001, 96), (10240, 576), (128256, 4096)]
ROWS = (1, 4, 16, 33)


def chosen(x: Tensor, weight: Tensor, config: GemmConfig, *, before: int = 0) -> tuple[Tensor, Tensor]:
    """Results and choices of all rows of x, whose choices were `before`."""
    (rows, k), n = x.shape, len(weight)
    out, choices = poisoned(rows, n, dtype=torch.float32), torch.full((rows,), before, device="cuda")
    kernel = MatmulRows(n, k, Epilogue.PLAIN, rows, config, chooses=True)
    kernel(out, x, weight, rows_of(range(rows), 1), choices=choices)
    return out, choices


def ordered(logit: float) -> int:
    """The bits of a float32 that is not zero, as an unsigned integer that is the larger, the larger the float is."""
    (bits,) = struct.unpack("<I", struct.pack("<f", logit))
    return int(bits ^ (0xFFFFFFFF if logit < 0 else 0x80000000))


@pytest.mark.gpu
@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_the_choice_is_the_largest_result_and_its_column(n: int, k: int, config: GemmConfig) -> None:
    x, weight = normal(max(ROWS), k), normal(n, k, seed=1)
    for rows in ROWS:
        out, choices = chosen(x[:rows], weight, config)
        best = oracles.greedy_choices(out.double())
        assert index_of(choices).tolist() == best.tolist()
        largest = [max(row) for row in out.tolist()]
        assert [(c >> 32) & 0xFFFFFFFF for c in choices.tolist()] == [ordered(logit) for logit in largest]
        plain = poisoned(rows, n, dtype=torch.float32)
        MatmulRows(n, k, Epilogue.PLAIN, rows, config)(plain, x[:rows], weight, rows_of(range(rows), 1))
        assert torch.equal(plain, out)


@pytest.mark.gpu
@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("sign", [1, -1])
def test_of_equals_the_lowest_column_is_chosen(config: GemmConfig, sign: int) -> None:
    n, k = 5003, 96
    weight, best = normal(n, k, seed=1).abs() + 2, torch.ones(k, device="cuda") * (10 if sign > 0 else 1)
    for columns in ([7, 2500, n - 1], [8, 15], [n - 2, n - 1], [0, 16, 32, 48, 64]):
        weights = weight.clone()
        weights[columns] = best.bfloat16()
        for rows in ROWS:
            out, choices = chosen(sign * torch.ones(rows, k, dtype=torch.bfloat16, device="cuda"), weights, config)
            assert (out[:, columns] == out.amax(dim=1, keepdim=True)).all()
            assert index_of(choices).tolist() == [columns[0]] * rows


@pytest.mark.gpu
@pytest.mark.parametrize("columns", [(3, 700), (700, 3)])
def test_minus_zero_equals_zero(columns: tuple[int, int]) -> None:
    """A division by a large root mean square rounds a tiny negative sum to -0; the first column's sum is 0."""
    n, k, rows = 1001, 96, 4
    weight = torch.full((n, k), -1e8, dtype=torch.bfloat16, device="cuda")
    weight[columns[0]], weight[columns[1]] = 0, -1e-15
    x = torch.full((rows, k), 1e-15, dtype=torch.bfloat16, device="cuda")
    pre_norm = PreNormRows(x, torch.zeros(rows, k // 8, device="cuda"))
    out, choices = poisoned(rows, n, dtype=torch.float32), torch.zeros(rows, dtype=torch.int64, device="cuda")
    kernel = MatmulRows(n, k, Epilogue.PLAIN, rows, scaled=True, chooses=True)
    kernel(out, pre_norm, weight, rows_of(range(rows), 1), eps=1e38, choices=choices)
    assert (out[:, columns] == 0).all() and torch.signbit(out[:, columns]).tolist() == [[False, True]] * rows
    assert (out < 0).sum() == rows * (n - 2)
    assert index_of(choices).tolist() == [3] * rows


@pytest.mark.gpu
@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("value", [math.nan, -math.nan, math.inf, -math.inf])
def test_a_result_that_is_not_finite_comes_to_light(config: GemmConfig, value: float) -> None:
    n, k = 1001, 96
    weight = normal(n, k, seed=1)
    weight[n - 1] = value
    x = torch.ones(33, k, dtype=torch.bfloat16, device="cuda")
    for rows in ROWS:
        out, choices = chosen(x[:rows], weight, config)
        assert not out[:, n - 1].isfinite().any()
        assert all((choice >> 32) & 0xFFFFFFFF == 0xFFFFFFFF for choice in choices.tolist())
        assert index_of(choices).tolist() == [n - 1] * rows


@pytest.mark.gpu
def test_garbage_in_rows_that_are_done_is_not_chosen() -> None:
    n, k = 33, 96
    weight, x = normal(n, k, seed=1), normal(9, k)
    x[5:] = math.nan
    choices = torch.zeros(9, dtype=torch.int64, device="cuda")
    out = poisoned(9, n, dtype=torch.float32)
    kernel = MatmulRows(n, k, Epilogue.PLAIN, 9, chooses=True)
    kernel(out, x, weight, rows_of(range(5), 1, slots=9), choices=choices)
    assert index_of(choices[:5]).tolist() == oracles.greedy_choices(out[:5].double()).tolist()
    assert not choices[5:].any()


@pytest.mark.gpu
@pytest.mark.parametrize("active", [0, 1, 5])
def test_choices_of_rows_that_are_done_stay(active: int) -> None:
    n, k = 1001, 96
    x, weight, choices = normal(32, k), normal(n, k, seed=1), torch.arange(1, 33, device="cuda")
    out, before = poisoned(32, n, dtype=torch.float32), choices.clone()
    kernel = MatmulRows(n, k, Epilogue.PLAIN, 32, chooses=True)
    kernel(out, x, weight, rows_of(range(active), 4, slots=8), choices=choices)
    assert torch.equal(choices[4 * active :], before[4 * active :])
    assert index_of(choices[: 4 * active]).tolist() == oracles.greedy_choices(out[: 4 * active].double()).tolist()


@pytest.mark.gpu
@pytest.mark.parametrize("config", CONFIGS)
def test_a_choice_that_is_not_beaten_stays(config: GemmConfig) -> None:
    larger = (ordered(1e6) << 32 | 5) - (1 << 64)
    for rows in ROWS:
        _, choices = chosen(normal(rows, 96), normal(1001, 96, seed=1), config, before=larger)
        assert choices.tolist() == [larger] * rows


@pytest.mark.gpu
def test_a_choice_is_taken_before_the_next_product_makes_its_own() -> None:
    """Each product's results are far below those of the one before it: a choice that is left would not be beaten."""
    n, k, slots, steps = 10240, 576, 4, 6
    weight, ids = normal(n, k, seed=1), torch.arange(n, dtype=torch.int32, device="cuda").flip(0)
    lists = state(range(slots), steps, slots)
    rows, weights = lists.rows(slots, 1), InputWeights(normal(n, k), normal(k, seed=1), normal(k, seed=2))
    x = [normal(slots, k, scale=8.0**-step, seed=step) for step in range(steps)]
    pre_norm = PreNormRows(normal(slots, k), normal(slots, k // 8, dtype=torch.float32).square())
    lm_head = MatmulRows(n, k, Epilogue.PLAIN, slots, chooses=True)
    token = DraftToken(k, n, norm_output=False, norm_before_residual=False, max_rows=steps)
    choices, inputs = torch.zeros(slots, dtype=torch.int64, device="cuda"), poisoned(slots, 2 * k)
    own = {"stream": normal(slots, k, dtype=torch.float32), "choices": choices, "target_ids": ids}
    for _ in range(20):
        out = [poisoned(slots, n, dtype=torch.float32) for _ in range(steps)]
        for step in range(steps):
            lm_head(out[step], x[step], weight, rows, choices=choices)
            token(rows, lists, pre_norm, weights, input=inputs, **own, index=step, eps=1e-5)
        want = torch.stack([ids[oracles.greedy_choices(logits.double())] for logits in out], dim=1)
        assert torch.equal(lists.drafts, want)
        assert not choices.any() and not lists.fault.any()


def test_only_a_product_that_leaves_its_results_as_they_are_chooses() -> None:
    for epilogue in (Epilogue.RESIDUAL, Epilogue.SWIGLU):
        with pytest.raises(ValueError, match=f"{epilogue.name} with chooses: only PLAIN has that"):
            MatmulRows(64, 64, epilogue, 1, chooses=True)


def test_a_product_chooses_however_it_is_tiled() -> None:
    made = MatmulRows(64, 64, Epilogue.PLAIN, 1, scaled=True, chooses=True)
    assert made.retiled(GemmConfig(8, 1, 2, 2, 1)).chooses
    assert not MatmulRows(64, 64, Epilogue.PLAIN, 1).retiled(GemmConfig(8, 1, 2, 2, 1)).chooses


def test_choices_go_to_a_product_that_makes_them_and_to_no_other() -> None:
    rows = Rows(torch.zeros(4, dtype=torch.int32), torch.ones(1, dtype=torch.int32), 4, 1)
    out, x, weight = torch.zeros(4, 64), *(torch.zeros(r, 64, dtype=torch.bfloat16) for r in (4, 64))
    choosing, plain = (MatmulRows(64, 64, Epilogue.PLAIN, 4, chooses=chooses) for chooses in (True, False))
    with pytest.raises(ValueError, match="matmul_rows: choices is missing: the kernel is compiled for TAKES_ARGMAX"):
        choosing(out, x, weight, rows)
    with pytest.raises(ValueError, match="matmul_rows: choices is given: the kernel is not compiled for TAKES_ARGMAX"):
        plain(out, x, weight, rows, choices=torch.zeros(4, dtype=torch.int64))
    for wrong in (torch.zeros(3, dtype=torch.int64), torch.zeros(4, dtype=torch.int32), torch.zeros(4, 1)):
        with pytest.raises(ValueError, match=r"choices: .* a contiguous torch.int64 \[4\] is needed"):
            choosing(out, x, weight, rows, choices=wrong)


def test_packed_choices_order_as_their_logits_do() -> None:
    """What the tests here take for granted of `ordered`, and of choices by the logit 2."""
    logits = [-3e38, -2.0, -1e-40, 1e-40, 1.0, 2.0, 3e38]
    assert [ordered(a) for a in logits] == sorted({ordered(a) for a in logits})
    tokens = torch.tensor([0, 5, 128255, (1 << 31) - 1], dtype=torch.int32)
    choices = packed(tokens)
    assert choices.tolist() == [(ordered(2.0) << 32 | 0xFFFFFFFF - token) - (1 << 64) for token in tokens.tolist()]
    assert index_of(choices).tolist() == tokens.tolist()
