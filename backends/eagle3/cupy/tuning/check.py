"""Check of a configuration's results: compared with float64, with cuBLAS, and, bit for bit, with itself at other
numbers of rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.matmul.gemm_config import GemmConfig
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import Epilogue
from specgate.backends.eagle3.cupy.tuning.product import ROWS, Product, rows_of

AT_A_TIME: Final = 8192
"""Rows of a weight that are widened to float64 at a time."""
TOLERANCES: Final[Mapping[str, Mapping[Epilogue, float]]] = {
    # float32 sums, and bfloat16 ones, which round once.
    "float64": {Epilogue.PLAIN: 1e-5, Epilogue.RESIDUAL: 1e-5, Epilogue.SWIGLU: 4e-3},
    # cuBLAS rounds to bfloat16, gate and up each once before they are multiplied.
    "cuBLAS": {Epilogue.PLAIN: 4e-3, Epilogue.RESIDUAL: 4e-3, Epilogue.SWIGLU: 1e-2},
}
"""The most that ‖found − oracle‖ / ‖oracle‖ may be."""


@dataclass(frozen=True, slots=True)
class Oracles:
    """The right results of the product with the first weight: oracle → float64 [M, N]."""

    product: Product
    said: Mapping[str, Tensor]

    @classmethod
    def of(cls, product: Product) -> Oracles:
        x, weight = product.x, product.weights[0]
        wide = torch.cat([x.double() @ part.double().t() for part in torch.split(weight, AT_A_TIME)], dim=1)
        sums = {"float64": wide, "cuBLAS": (x @ weight.t()).double()}
        return cls(product, {who: after(product, by) for who, by in sums.items()})

    def fault(self, config: GemmConfig) -> str | None:
        """Return the fault in the results of `config`; None without one."""
        product = self.product

        def run(on: Product, count: int) -> Tensor:
            return first_rows(on, config, count)

        whole = run(product, product.rows)
        for who, oracle in self.said.items():
            error = relative_error(whole, oracle)
            if not error < TOLERANCES[who][product.epilogue]:  # NaN is not
                return f"differs from {who} by {error:.1e}"
        for count in ROWS:
            if count <= product.rows and not torch.equal(run(product, count), whole[:count]):
                return f"gives rows 1 to {count} other bits than among {product.rows}"
        alone = run(product.last_first(), 1)
        return None if torch.equal(alone[0], whole[-1]) else f"gives row {product.rows} other bits alone and first"


def first_rows(product: Product, config: GemmConfig, count: int) -> Tensor:
    """Rows 1 to `count`, computed with no others."""
    out = product.output()
    product.launcher(config)(out, product.x, product.weights[0], rows_of(count, product.x.device))
    return out[:count]


def after(product: Product, sums: Tensor) -> Tensor:
    """Apply the epilogue to `sums` [M, N]."""
    if product.epilogue is Epilogue.SWIGLU:
        gate, up = sums.chunk(2, dim=1)
        return torch.nn.functional.silu(gate) * up
    return sums + product.before.double() if product.epilogue is Epilogue.RESIDUAL else sums


def relative_error(result: Tensor, oracle: Tensor) -> float:
    return float((result.double() - oracle).norm() / oracle.norm())
