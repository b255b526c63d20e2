"""From the products that were asked for to the weights behind them: one configuration belongs to each weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from specgate.backends.cupy_eagle3.kernels.matmul.gemm_config import GemmConfig
from specgate.backends.cupy_eagle3.kernels.matmul.matmul_rows import Epilogue, MatmulRows
from specgate.backends.cupy_eagle3.tuned.gemms import EPILOGUES, parts
from specgate.backends.cupy_eagle3.tuning.product import MOST
from specgate.errors import UsageError
from specgate.tuning.gemms import GemmShape

CHUNK: Final = 32
"""Columns of a weight that a tensor core takes at a time."""


@dataclass(frozen=True, slots=True)
class Weight:
    """[n, k], bfloat16, and the products that use it."""

    n: int
    k: int
    tags: tuple[str, ...]

    @property
    def size(self) -> int:
        """Size of the weight in bytes."""
        return 2 * self.n * self.k

    @property
    def epilogues(self) -> tuple[Epilogue, ...]:
        return tuple(sorted({EPILOGUES[tag] for tag in self.tags}))

    def launcher(self, epilogue: Epilogue, config: GemmConfig) -> MatmulRows:
        return MatmulRows(self.n // parts(epilogue), self.k, epilogue, MOST, config)

    def __str__(self) -> str:
        return f"{self.tags[0]} {self.n} x {self.k}"


def weights_of(shapes: Sequence[GemmShape]) -> tuple[Weight, ...]:
    """The weights of `shapes`, the largest first. Raises UsageError for a tag or size that the engine does not have."""
    tags: dict[tuple[int, int], set[str]] = {}
    for shape in shapes:
        check(shape)
        tags.setdefault(shape.weight, set()).add(shape.tag)
    weights = (Weight(n, k, tuple(sorted(used))) for (n, k), used in tags.items())
    return tuple(sorted(weights, key=lambda weight: (-weight.size, weight.n)))


def check(shape: GemmShape) -> None:
    if shape.tag not in EPILOGUES:
        raise UsageError(f"shape {shape.tag}: no product of back end cupy", hint=f"known: {', '.join(EPILOGUES)}")
    if shape.k % CHUNK:
        raise UsageError(f"shape {shape.tag} {shape.n} x {shape.k}: k must be a multiple of {CHUNK}")
    if shape.n % parts(EPILOGUES[shape.tag]):
        raise UsageError(f"shape {shape.tag} {shape.n} x {shape.k}: n counts gate and up rows: an even number")
