"""Products of any kernel: how one is divided, what it is given, and all that it leaves."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.matmul.gemm_config import MAX_ROWS, GemmConfig
from specgate.backends.eagle3.cupy.kernels.matmul.many_config import ManyConfig
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import Epilogue, MatmulRows, PreNormRows
from specgate.backends.eagle3.cupy.kernels.matmul.wgmma_config import WgmmaConfig
from tests.eagle3.cupy.kernels.device import normal, poisoned, rows_of

PLAIN, RESIDUAL, SWIGLU = Epilogue.PLAIN, Epilogue.RESIDUAL, Epilogue.SWIGLU


@dataclass(frozen=True, slots=True)
class Case:
    """A product of `rows` rows, of which `active` are multiplied, and how it is divided."""

    n: int
    k: int
    epilogue: Epilogue
    rows: int
    active: int
    config: GemmConfig | WgmmaConfig
    extra: bool = False
    """Whether it also has what its epilogue may: a norm before and after it, choices; by wgmma, a bias."""
    way: ManyConfig | None = None


@lru_cache(maxsize=1)
def weight_of(n: int, k: int, device: str) -> Tensor:
    """The weight [n, k], drawn once for cases in a row: that takes a CPU far longer than a GPU its products."""
    return normal(n, k, seed=1, scale=k**-0.5, device=device)


def operands(case: Case, device: str) -> tuple[Tensor, Tensor, PreNormRows]:
    """x, of which rows that are not active hold NaN, the weight, and the same x with sums of squares."""
    x = normal(MAX_ROWS, case.k, device=device)[: case.rows]
    x[case.active :] = float("nan")
    weight = weight_of((1 + (case.epilogue is SWIGLU)) * case.n, case.k, device)
    squares = normal(MAX_ROWS, case.k // 8, dtype=torch.float32, device=device).square()
    return x, weight, PreNormRows(x, squares[: case.rows])


def before_of(case: Case, device: str) -> Tensor:
    """`out` as the product finds it."""
    dtype = torch.bfloat16 if case.epilogue is SWIGLU else torch.float32
    return normal(MAX_ROWS, case.n, dtype=dtype, seed=2, device=device)[: case.rows]


def results(case: Case, device: str) -> dict[str, Tensor]:
    """All that the product leaves."""
    n, rows, extra, by_wgmma = case.n, case.rows, case.extra, isinstance(case.config, WgmmaConfig)
    x, weight, pre_norm = operands(case, device)
    feeds, chooses = extra and case.epilogue is RESIDUAL, extra and case.epilogue is PLAIN
    out = before_of(case, device)
    left = PreNormRows(poisoned(rows, n, device=device), poisoned(rows, n // 8, dtype=torch.float32, device=device))
    choices = torch.zeros(rows, dtype=torch.int64, device=device)
    kernel = MatmulRows(
        *(n, case.k, case.epilogue, rows, case.config),
        scaled=extra and not feeds,
        feeds_norm=feeds,
        chooses=chooses,
        biased=by_wgmma and (chooses or feeds),
        many=case.way,
    )
    assert kernel.name == ("matmul_wgmma" if by_wgmma else "matmul_many" if case.way else "matmul_rows")
    kernel(
        out,
        pre_norm if kernel.scaled else x,
        weight,
        rows_of(range(case.active), 1, slots=rows, device=device),
        eps=1e-5,
        norm=(left, normal(n, seed=3, device=device)) if feeds else None,
        choices=choices if chooses else None,
        bias=normal(n, seed=4, device=device) if kernel.biased else None,
    )
    return {"out": out, "choices": choices, "normed": left.normed, "squares": left.squares}
