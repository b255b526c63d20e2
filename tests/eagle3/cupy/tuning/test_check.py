"""The comparison sees faults: a product on the CPU takes the kernel's place, with faults planted."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.matmul.gemm_config import GemmConfig
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import Epilogue
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows
from specgate.backends.eagle3.cupy.tuning.product import MOST, Product

Launch = Callable[[Tensor, Tensor, Tensor, Rows], None]


def launching(product: Product, spoil: Callable[[Tensor, int], Tensor]) -> Callable[[Product, GemmConfig], Launch]:
    """A launcher that computes in float64, row by row, and then `spoil`s the sums of `count` rows."""

    def launcher(_: Product, config: GemmConfig) -> Launch:
        def launch(out: Tensor, x: Tensor, weight: Tensor, rows: Rows) -> None:
            # Row by row: the bits of a whole product may depend on how many rows there are.
            sums = torch.stack([(weight.double() * row.double()).sum(1) for row in x[: rows.most]])
            sums = spoil(sums, rows.most)
            if product.epilogue is Epilogue.SWIGLU:
                gate, up = sums.chunk(2, dim=1)
                out[: rows.most] = (torch.nn.functional.silu(gate) * up).to(out.dtype)
            elif product.epilogue is Epilogue.RESIDUAL:
                out[: rows.most] += sums.float()
            else:
                out[: rows.most] = sums.float()

        return launch

    return launcher


def fault(monkeypatch: pytest.MonkeyPatch, epilogue: Epilogue, spoil: Callable[[Tensor, int], Tensor]) -> str | None:
    product = Product.random(64, 96, epilogue, copies=1, device="cpu")
    monkeypatch.setattr(Product, "launcher", launching(product, spoil))
    return product.fault(GemmConfig())


@pytest.mark.parametrize("epilogue", Epilogue)
def test_a_right_product_has_no_fault(monkeypatch: pytest.MonkeyPatch, epilogue: Epilogue) -> None:
    assert fault(monkeypatch, epilogue, lambda sums, rows: sums) is None


def not_written(sums: Tensor, rows: int) -> Tensor:
    return sums.index_fill(1, torch.tensor([5]), float("nan"))


def nudged(where: Callable[[int], bool]) -> Callable[[Tensor, int], Tensor]:
    """The first row a few units in the last place off where `where` says so of the number of rows."""
    return lambda sums, rows: torch.cat((sums[:1] * (1 + 1e-6), sums[1:])) if where(rows) else sums


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda sums, rows: sums * 1.02, r"differs from float64 by 2\.0e-02"),
        (not_written, r"differs from float64 by nan"),
        (nudged(lambda rows: rows == 4), r"gives rows 1 to 4 other bits than among 8"),
        (nudged(lambda rows: True), r"gives row 8 other bits alone and first"),
    ],
    ids=["too large", "not written", "other bits among four", "other bits in the first place"],
)
def test_a_planted_fault_is_seen(
    monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Tensor, int], Tensor], message: str
) -> None:
    result = fault(monkeypatch, Epilogue.PLAIN, spoil)
    assert result is not None and re.fullmatch(message, result)


def test_the_last_row_comes_first_with_what_it_adds_to() -> None:
    product = Product.random(64, 96, Epilogue.RESIDUAL, copies=1, device="cpu")
    turned = product.last_first()
    (out,) = turned.output()
    assert torch.equal(turned.x[0], product.x[MOST - 1]) and torch.equal(out[0], product.before[MOST - 1])
