"""A weight that is searched for, as the searches see it: a plain one or that of experts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
<<<<<<< HEAD
from typing import Any, Final, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.experts.expert_config import ExpertConfig, check_experts
=======
from typing import Generic, Protocol, TypeVar

from specgate.backends.eagle3.cupy.kernels.experts.expert_config import ExpertConfig
>>>>>>> parent of 4c32fe21 (wip)
from specgate.backends.eagle3.cupy.kernels.experts.launchers import ExpertDown, ExpertGateUp
from specgate.backends.eagle3.cupy.kernels.experts.packing import TILE
from specgate.backends.eagle3.cupy.kernels.loader import Kernel, Spec
from specgate.backends.eagle3.cupy.kernels.matmul.gemm_config import GemmConfig
<<<<<<< HEAD
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import Epilogue, MatmulRows
from specgate.backends.eagle3.cupy.tuned.gemms import EPILOGUES, parts
from specgate.backends.eagle3.cupy.tuned.lookup import EXPERT_DOWN, EXPERT_GATE_UP, KERNELS_OF_EXPERTS
from specgate.backends.eagle3.cupy.tuning.expert_product import geometry_of
from specgate.backends.eagle3.cupy.tuning.expert_weight import ExpertWeight
from specgate.backends.eagle3.cupy.tuning.gemm_weight import GemmWeight
from specgate.backends.eagle3.cupy.tuning.product import MOST, ROWS, Product, rows_of
from specgate.backends.eagle3.nouns.gemms import GemmShape, Key
from specgate.errors import UsageError
=======
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import MatmulRows
from specgate.backends.eagle3.cupy.tuned.lookup import EXPERT_DOWN, EXPERT_GATE_UP
from specgate.backends.eagle3.nouns.gemms import GemmShape, Key
>>>>>>> parent of 4c32fe21 (wip)

Config = TypeVar("Config", bound=GemmConfig | ExpertConfig)
Asked = TypeVar("Asked", bound=GemmConfig | ExpertConfig, contravariant=True)
Launcher = MatmulRows | ExpertGateUp | ExpertDown
"""What launches a product that has a configuration."""
Launch = tuple[Spec, int]
"""The machine code of a launcher, and the blocks of its grid where these are not compiled into it, else 0."""
Fault = str | None
"""What is wrong with what a configuration computes; None where nothing is."""


class OnRandom(Protocol[Asked]):
    """A product with random operands."""

    @property
    def inputs(self) -> int:
        """Return the number of operands to rotate, so that no launch finds its own in the cache."""

    def read_bytes(self, rows: int) -> float:
        """Bytes of weight that a launch on `rows` rows has to read, the mean over its inputs."""

    def launching(self, config: Asked, rows: int) -> Callable[[int], None]:
        """Launches on `rows` rows, with the i-th of the inputs."""


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
    def products(self, l2_bytes: int) -> Sequence[OnRandom[Config]]:
        """Its products with operands that no cache of `l2_bytes` holds."""

    @abstractmethod
    def checker(self, product: OnRandom[Config]) -> Callable[[Config], Fault]:
        """Compares what configurations compute of one of its `products` with the oracles."""

    @abstractmethod
    def right(self, config: Config) -> bool:
        """Return whether `config` computes what it should."""

    @abstractmethod
    def same_bits(self, config: Config, moved: Config, rows: int) -> bool:
        """Return whether `moved` makes of `rows` rows what it should, and, bit for bit, what `config` makes of
        a few.
        """

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
    """Return the key of its weight, if that has a configuration."""
    if isinstance(kernel, MatmulRows):
        return kernel.weight
    if isinstance(kernel, ExpertGateUp):
        tag, n, k = EXPERT_GATE_UP, 2 * kernel.intermediate, kernel.hidden
    elif isinstance(kernel, ExpertDown):
        tag, n, k = EXPERT_DOWN, kernel.hidden, kernel.intermediate
    else:
        return None
    return GemmShape(tag, n, k, kernel.rows, kernel.experts.count, kernel.experts.per_token).key
