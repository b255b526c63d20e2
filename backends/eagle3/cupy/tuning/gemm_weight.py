"""A plain weight, bfloat16, and how its products are searched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from specgate.backends.eagle3.cupy.bench.timing import inputs_to_rotate
from specgate.backends.eagle3.cupy.device import multiprocessor_count
from specgate.backends.eagle3.cupy.kernels.matmul.gemm_config import ROW_TILE, GemmConfig
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import Epilogue, MatmulRows
from specgate.backends.eagle3.cupy.tuned.gemms import EPILOGUES, parts
from specgate.backends.eagle3.cupy.tuned.lookup import KERNEL
from specgate.backends.eagle3.cupy.tuning.check import Oracles, first_rows
from specgate.backends.eagle3.cupy.tuning.gemm_candidates import candidates, fills_an_sm, retilings
from specgate.backends.eagle3.cupy.tuning.product import MOST, Product
from specgate.backends.eagle3.cupy.tuning.weight import Fault, Launch, OnRandom, Weight, launch_of
from specgate.backends.eagle3.nouns.gemms import Key


@dataclass(frozen=True, slots=True)
class GemmWeight(Weight[GemmConfig]):
    @property
    def key(self) -> Key:
        return self.n, self.k

    @property
    def size(self) -> int:
        return 2 * self.n * self.k

    @property
    def kernel(self) -> str:
        return KERNEL

    @property
    def default(self) -> GemmConfig:
        return GemmConfig()

    @property
    def epilogues(self) -> tuple[Epilogue, ...]:
        return tuple(sorted({EPILOGUES[tag] for tag in self.tags}))

    def candidates(self) -> Sequence[GemmConfig]:
        return candidates(self.n, self.k)

    def launcher(self, epilogue: Epilogue, config: GemmConfig) -> MatmulRows:
        return MatmulRows(self.n // parts(epilogue), self.k, epilogue, MOST, config)

    def launches(self, config: GemmConfig) -> tuple[Launch, ...]:
        return tuple(launch_of(self.launcher(epilogue, config)) for epilogue in self.epilogues)

    def products(self, l2_bytes: int) -> Sequence[Product]:
        copies = inputs_to_rotate(self.size, l2_bytes)
        return [Product.random(self.n, self.k, epilogue, copies) for epilogue in self.epilogues]

    def checker(self, product: OnRandom[GemmConfig]) -> Callable[[GemmConfig], Fault]:
        assert isinstance(product, Product)
        return Oracles.of(product).fault

    def right(self, config: GemmConfig) -> bool:
        products = (Product.random(self.n, self.k, epilogue, 1) for epilogue in self.epilogues)
        return all(Oracles.of(product).fault(config) is None for product in products)

    def same_bits(self, config: GemmConfig, moved: GemmConfig, rows: int) -> bool:
        for epilogue in self.epilogues:
            many = Product.random(self.n, self.k, epilogue, 1, rows=rows)
            if Oracles.of(many).fault(moved) is not None:
                return False
            few = [many.part(first, min(first + MOST, rows)) for first in range(0, rows, MOST)]
            expected = torch.cat([first_rows(part, config, part.rows) for part in few])
            if not torch.equal(first_rows(many, moved, rows), expected):
                return False
        return True

    def at(self, config: GemmConfig, rows: int) -> GemmConfig:
        return config.at(rows)

    def moved(self, config: GemmConfig, rows: int) -> Sequence[GemmConfig]:
        """Tiles and stages, in one pass or as a block that keeps x in registers."""
        row_tiles, processors = -(-rows // ROW_TILE), multiprocessor_count()
        return [
            moved
            for moved in retilings(config, self.n, self.k, processors)
            if not moved.delay_dependents
            and (moved.passes == 1 or fills_an_sm(moved, self.n, self.k, row_tiles, processors))
        ]

    def near(self, config: GemmConfig, best: GemmConfig) -> Sequence[GemmConfig]:
        """Passes, and whether the next kernel is delayed."""
        every = retilings(config, self.n, self.k, multiprocessor_count())
        return [moved for moved in every if (moved.tiles, moved.stages) == (best.tiles, best.stages)]

    def __str__(self) -> str:
        return f"{self.tags[0]} {self.n} x {self.k}"
