"""Products of a step with random operands: what configurations are compared and timed on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Generic, Self, TypeVar

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.bench.oracles import relative_error
from specgate.backends.eagle3.cupy.kernels.experts.expert_config import ExpertConfig
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import AnyConfig, Epilogue, MatmulRows
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows
from specgate.backends.eagle3.cupy.tuned.gemms import parts

ROWS = (1, 4, 8)
"""Numbers of rows that are timed: of a baseline step over one slot; of spec-3 over one slot, or the baseline over four;
and a whole tile.
"""
MOST = max(ROWS)


AT_A_TIME: Final = 8192
"""Rows of a weight that are widened to float64 at a time."""
TOLERANCES: Final[Mapping[str, Mapping[Epilogue, float]]] = {
    # float32 sums, and bfloat16 ones, which round once.
    "float64": {Epilogue.PLAIN: 1e-5, Epilogue.RESIDUAL: 1e-5, Epilogue.SWIGLU: 4e-3},
    # cuBLAS rounds to bfloat16, gate and up each once before they are multiplied.
    "cuBLAS": {Epilogue.PLAIN: 4e-3, Epilogue.RESIDUAL: 4e-3, Epilogue.SWIGLU: 1e-2},
}
"""The most that ‖found − oracle‖ / ‖oracle‖ may be."""

Fault = str | None
"""What is wrong with what a configuration computes; None where nothing is."""
Results = tuple[Tensor, ...]
"""What a product leaves, by rows."""
Asked = TypeVar("Asked", bound=AnyConfig | ExpertConfig, contravariant=True)


class OnRandom(ABC, Generic[Asked]):
    """A product with random operands."""

    @property
    @abstractmethod
    def rows(self) -> int:
        """Return the number of its rows."""

    @property
    @abstractmethod
    def inputs(self) -> int:
        """Return the number of operands to rotate, so that no launch finds its own in the cache."""

    @abstractmethod
    def read_bytes(self, rows: int) -> float:
        """Bytes of weight that a launch on `rows` rows has to read, the mean over its inputs."""

    @abstractmethod
    def output(self) -> Results:
        """Tensors for the results, in which nothing has been written yet."""

    @abstractmethod
    def launching_into(self, out: Results, config: Asked, rows: int) -> Callable[[int], None]:
        """Launches on `rows` rows, with the i-th of the inputs, that leave their results in `out`."""

    @abstractmethod
    def last_first(self) -> Self:
        """The same with every row one place further on, so that the last one comes first."""

    @abstractmethod
    def part(self, first: int, end: int) -> Self:
        """The same product of the rows from `first` up to, but without, `end`."""

    @abstractmethod
    def oracles(self) -> Mapping[str, tuple[Tensor, float]]:
        """Oracle → the right results with the first of the inputs, in float64, and the most that an error may be."""

    def launching(self, config: Asked, rows: int) -> Callable[[int], None]:
        return self.launching_into(self.output(), config, rows)

    def first_rows(self, config: Asked, count: int) -> Results:
        """Of rows 1 to `count`, computed with no others, with the first of the inputs."""
        out = self.output()
        self.launching_into(out, config, count)(0)
        return tuple(result[: count * (len(result) // self.rows)] for result in out)

    def computed(self, whole: Results) -> Tensor:
        """Return what oracles say, of the results of all rows."""
        return whole[0]

    @cached_property
    def expected(self) -> Mapping[str, tuple[Tensor, float]]:
        return self.oracles()

    def fault(self, config: Asked) -> Fault:
        """Return the fault in the results of `config`; None without one."""
        whole = self.first_rows(config, self.rows)
        for who, (oracle, tolerance) in self.expected.items():
            error = relative_error(self.computed(whole), oracle)
            if not error < tolerance:  # NaN is not
                return f"differs from {who} by {error:.1e}"
        for count in ROWS:
            if count <= self.rows and not same(self.first_rows(config, count), whole):
                return f"gives rows 1 to {count} other bits than among {self.rows}"
        alone = self.last_first().first_rows(config, 1)
        last = tuple(result[-len(one) :] for result, one in zip(whole, alone, strict=True))
        return None if same(alone, last) else f"gives row {self.rows} other bits alone and first"


def same(some: Results, whole: Results) -> bool:
    """Return whether `some` rows have the bits of the first of `whole`."""
    return all(torch.equal(one, result[: len(one)]) for one, result in zip(some, whole, strict=True))


@dataclass(frozen=True)
class Product(OnRandom[AnyConfig]):
    """`x` bfloat16 [M, K]; `weights` bfloat16 [copies, N, K]; `before` float32 [M, outputs]: RESIDUAL adds to it."""

    epilogue: Epilogue
    x: Tensor
    weights: Tensor
    before: Tensor

    @classmethod
    def random(
        cls, n: int, k: int, epilogue: Epilogue, copies: int, device: torch.device | str = "cuda", rows: int = MOST
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

    def launching_into(self, out: Results, config: AnyConfig, rows: int) -> Callable[[int], None]:
        launcher, step = self.launcher(config), rows_of(rows, self.x.device)
        return lambda i: launcher(out[0], self.x, self.weights[i], step)

    def launcher(self, config: AnyConfig) -> MatmulRows:
        """One for all numbers of rows up to its own, so that they share their machine code."""
        return MatmulRows(self.n_out, self.x.shape[1], self.epilogue, self.rows, config)

    def last_first(self) -> Product:
        return replace(self, x=self.x.roll(1, dims=0), before=self.before.roll(1, dims=0))

    def part(self, first: int, end: int) -> Product:
        return replace(self, x=self.x[first:end], before=self.before[first:end])

    def output(self) -> Results:
        if self.epilogue is Epilogue.RESIDUAL:
            return (self.before.clone(),)
        dtype = torch.bfloat16 if self.epilogue is Epilogue.SWIGLU else torch.float32
        return (torch.full_like(self.before, float("nan"), dtype=dtype),)

    def oracles(self) -> Mapping[str, tuple[Tensor, float]]:
        x, weight = self.x, self.weights[0]
        wide = torch.cat([x.double() @ part.double().t() for part in torch.split(weight, AT_A_TIME)], dim=1)
        sums = {"float64": wide, "cuBLAS": (x @ weight.t()).double()}
        return {who: (self.after(of), TOLERANCES[who][self.epilogue]) for who, of in sums.items()}

    def after(self, sums: Tensor) -> Tensor:
        """Apply the epilogue to `sums` [M, N]."""
        if self.epilogue is Epilogue.SWIGLU:
            gate, up = sums.chunk(2, dim=1)
            return torch.nn.functional.silu(gate) * up
        return sums + self.before.double() if self.epilogue is Epilogue.RESIDUAL else sums


def rows_of(count: int, device: torch.device | str = "cuda") -> Rows:
    """`count` slots of one row each."""
    active = torch.arange(count, dtype=torch.int32, device=device)
    return Rows(active, torch.tensor([count], dtype=torch.int32, device=device), count, 1)
