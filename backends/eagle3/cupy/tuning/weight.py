"""Weights that are searched for, one configuration each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from specgate.backends.eagle3.cupy.kernels.experts.expert_config import ExpertConfig
from specgate.backends.eagle3.cupy.kernels.experts.launchers import ExpertDown, ExpertGateUp
from specgate.backends.eagle3.cupy.kernels.loader import Kernel, Spec
from specgate.backends.eagle3.cupy.kernels.matmul.gemm_config import GemmConfig
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import MatmulRows
from specgate.backends.eagle3.cupy.tuned.lookup import EXPERT_DOWN, EXPERT_GATE_UP
from specgate.backends.eagle3.cupy.tuning.product import MOST, OnRandom, same
from specgate.backends.eagle3.nouns.gemms import GemmShape, Key

Config = TypeVar("Config", bound=GemmConfig | ExpertConfig)
Launcher = MatmulRows | ExpertGateUp | ExpertDown
"""What launches a product that has a configuration."""
Launch = tuple[Spec, int]
"""The machine code of a launcher, and the blocks of its grid where these are not compiled into it, else 0."""


@dataclass(frozen=True, slots=True)
class Weight(ABC, Generic[Config]):
    """[n, k], and the products that use it."""

    n: int
    k: int
    tags: tuple[str, ...]

    @property
    @abstractmethod
    def key(self) -> Key:
        """As that of a `GemmShape`."""

    @property
    def mixture(self) -> tuple[int, int]:
        """Return the numbers of experts in all and per row; zeros for a dense weight."""
        return 0, 0

    @property
    @abstractmethod
    def size(self) -> int:
        """Bytes of weight that a step of one row reads."""

    @property
    @abstractmethod
    def kernel(self) -> str:
        """The file of the kernel that computes its products."""

    @property
    @abstractmethod
    def default(self) -> Config:
        """Return the configuration used where nothing was found."""

    @abstractmethod
    def candidates(self) -> Sequence[Config]:
        """Return the configurations worth trying, but for the default."""

    @abstractmethod
    def launches(self, config: Config) -> tuple[Launch, ...]:
        """Those of its products alone."""

    @abstractmethod
    def products(self, copies: int, rows: int = MOST) -> Sequence[OnRandom[Config]]:
        """Its products with so many `rows` of random operands, and so many copies of it."""

    def right(self, config: Config) -> bool:
        """Return whether `config` computes what it should."""
        return all(product.fault(config) is None for product in self.products(1))

    def same_bits(self, config: Config, moved: Config, rows: int) -> bool:
        """Return whether `moved` makes of `rows` rows what it should, bit for bit what `config` makes of a few."""
        for many in self.products(1, rows):
            if many.fault(moved) is not None:
                return False
            few = [many.part(first, min(first + MOST, rows)) for first in range(0, rows, MOST)]
            expected = [torch.cat(of) for of in zip(*(part.first_rows(config, part.rows) for part in few), strict=True)]
            if not same(tuple(expected), many.first_rows(moved, rows)):
                return False
        return True

    @abstractmethod
    def at(self, config: Config, rows: int) -> Config:
        """`config`, which was found for a few rows, as it is used for `rows` rows."""

    @abstractmethod
    def moved(self, config: Config, rows: int) -> Sequence[Config]:
        """The work of `config` moved in other ways, for `rows` rows: those to begin with."""

    @abstractmethod
    def near(self, config: Config, best: Config) -> Sequence[Config]:
        """And those that are like `best`, the best of the former."""


def launch_of(kernel: Launcher) -> Launch:
    return kernel.spec, 0 if isinstance(kernel, MatmulRows) else kernel.config.blocks


def key_of(kernel: Kernel) -> Key | None:
    """Return the key of its weight, if that has a configuration that can be tried in steps: none by wgmma has."""
    if isinstance(kernel, MatmulRows):
        return None if kernel.wgmma else kernel.weight
    if not isinstance(kernel, ExpertGateUp | ExpertDown):
        return None
    tag = EXPERT_GATE_UP if isinstance(kernel, ExpertGateUp) else EXPERT_DOWN
    return GemmShape(tag, *kernel.weight, kernel.rows, kernel.experts.count, kernel.experts.per_token).key
