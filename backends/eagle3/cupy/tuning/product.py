"""One product of a step with random operands: what its configurations are compared and timed on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import AnyConfig, Epilogue, MatmulRows
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows
from specgate.backends.eagle3.cupy.tuned.gemms import parts

ROWS = (1, 4, 8)
"""Numbers of rows that are timed: of a baseline step over one slot; of spec-3 over one slot, or the baseline over four;
and a whole tile.
"""
MOST = max(ROWS)


@dataclass(frozen=True, slots=True)
class Product:
    """`x` bfloat16 [M, K]; `weights` bfloat16 [copies, N, K]; `before` float32 [M, outputs]: RESIDUAL adds to it."""

    epilogue: Epilogue
    x: Tensor
    weights: Tensor
    before: Tensor

    @classmethod
    def random(
        cls,
        n: int,
        k: int,
        epilogue: Epilogue,
        copies: int,
        device: torch.device | str = "cuda",
        rows: int = MOST,
    ) -> Product:
        """Random operands, whose sums have a variance of about one. Raises ValueError for half a gate and up pair."""
        if n % parts(epilogue):
            raise ValueError(f"{n} rows of a gate and an up projection: an even number is needed")
        generator = torch.Generator(device).manual_seed(n + k)

        def normal(*shape: int, scale: float, dtype: torch.dtype = torch.bfloat16) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device).normal_(0.0, scale, generator=generator)

        return cls(
            epilogue,
            x=normal(rows, k, scale=1.0),
            weights=normal(copies, n, k, scale=k**-0.5),
            before=normal(rows, n // parts(epilogue), scale=1.0, dtype=torch.float32),
        )

    @property
    def n_out(self) -> int:
        return self.before.shape[1]

    @property
    def rows(self) -> int:
        return self.x.shape[0]

    @property
    def inputs(self) -> int:
        return len(self.weights)

    def read_bytes(self, rows: int) -> float:
        return self.weights[0].nbytes

    def launching(self, config: AnyConfig, rows: int) -> Callable[[int], None]:
        launcher, out, step = self.launcher(config), self.output(), rows_of(rows, self.x.device)
        return lambda i: launcher(out, self.x, self.weights[i], step)

    def launcher(self, config: AnyConfig) -> MatmulRows:
        """One for all numbers of rows up to its own, so that they share their machine code."""
        return MatmulRows(self.n_out, self.x.shape[1], self.epilogue, self.rows, config)

    def last_first(self) -> Product:
        """The same with every row one place further on, so that the last one comes first."""
        return replace(self, x=self.x.roll(1, dims=0), before=self.before.roll(1, dims=0))

    def part(self, first: int, end: int) -> Product:
        """The same product of the rows from `first` up to, but without, `end`."""
        return replace(self, x=self.x[first:end], before=self.before[first:end])

    def output(self) -> Tensor:
        """A tensor for the result, in which nothing has been written yet."""
        if self.epilogue is Epilogue.RESIDUAL:
            return self.before.clone()
        dtype = torch.bfloat16 if self.epilogue is Epilogue.SWIGLU else torch.float32
        return torch.full_like(self.before, float("nan"), dtype=dtype)


def rows_of(count: int, device: torch.device | str = "cuda") -> Rows:
    """`count` slots of one row each."""
    active = torch.arange(count, dtype=torch.int32, device=device)
    return Rows(active, torch.tensor([count], dtype=torch.int32, device=device), count, 1)
