"""The weights of a mixture of experts in MXFP4, [n, k] each, and how their product is searched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from specgate.backends.eagle3.cupy.bench.timing import inputs_to_rotate
from specgate.backends.eagle3.cupy.kernels.experts.expert_config import ExpertConfig
from specgate.backends.eagle3.cupy.kernels.experts.packing import NUMBERS, SCALES, TILE, slab_count
from specgate.backends.eagle3.cupy.tuned.lookup import KERNELS_OF_EXPERTS
from specgate.backends.eagle3.cupy.tuning.expert_candidates import candidates, retilings
from specgate.backends.eagle3.cupy.tuning.expert_product import ExpertOracle, ExpertProduct, launcher
from specgate.backends.eagle3.cupy.tuning.product import MOST
from specgate.backends.eagle3.cupy.tuning.weight import Fault, Launch, OnRandom, Weight, launch_of
from specgate.backends.eagle3.nouns.gemms import GemmShape, Key


@dataclass(frozen=True, slots=True)
class ExpertWeight(Weight[ExpertConfig]):
    """`experts` matrices, of which a row has `per_token`."""

    experts: int
    per_token: int

    @property
    def shape(self) -> GemmShape:
        return GemmShape(self.tags[0], self.n, self.k, MOST, self.experts, self.per_token)

    @property
    def key(self) -> Key:
        return self.shape.key

    @property
    def mixture(self) -> tuple[int, int]:
        return self.experts, self.per_token

    @property
    def size(self) -> int:
        return self.per_token * self.n // TILE * slab_count(self.k) * (NUMBERS + SCALES)

    @property
    def kernel(self) -> str:
        return KERNELS_OF_EXPERTS[self.tags[0]]

    @property
    def default(self) -> ExpertConfig:
        return launcher(self.shape).config

    def candidates(self) -> Sequence[ExpertConfig]:
        return candidates(self.n, self.k)

    def launches(self, config: ExpertConfig) -> tuple[Launch, ...]:
        return (launch_of(launcher(self.shape, config)),)

    def products(self, l2_bytes: int) -> Sequence[ExpertProduct]:
        return [ExpertProduct.random(self.shape, inputs_to_rotate(self.size, l2_bytes))]

    def checker(self, product: OnRandom[ExpertConfig]) -> Callable[[ExpertConfig], Fault]:
        assert isinstance(product, ExpertProduct)
        return ExpertOracle.of(product).fault

    def right(self, config: ExpertConfig) -> bool:
        return ExpertOracle.of(ExpertProduct.random(self.shape, 1)).fault(config) is None

    def same_bits(self, config: ExpertConfig, moved: ExpertConfig, rows: int) -> bool:
        many = ExpertProduct.random(self.shape, 1, rows=rows)
        if ExpertOracle.of(many).fault(moved) is not None:
            return False
        few = [many.part(first, min(first + MOST, rows)) for first in range(0, rows, MOST)]
        each = [part.first_rows(config, part.rows) for part in few]
        expected = [torch.cat(parts) for parts in zip(*each, strict=True)]
        return all(map(torch.equal, many.first_rows(moved, rows), expected))

    def at(self, config: ExpertConfig, rows: int) -> ExpertConfig:
        return config

    def moved(self, config: ExpertConfig, rows: int) -> Sequence[ExpertConfig]:
        """Tiles and ring, with as many blocks as an SM has room for."""
        every = retilings(config, self.n)
        return [moved for moved in every if moved.blocks_per_sm == moved.room]

    def near(self, config: ExpertConfig, best: ExpertConfig) -> Sequence[ExpertConfig]:
        """Blocks of an SM, and room for those of the next kernel."""
        return [moved for moved in retilings(config, self.n) if (moved.tiles, moved.ring) == (best.tiles, best.ring)]

    def __str__(self) -> str:
        return str(self.shape)
