"""Weights that are searched for, one configuration each, and the checks of a configuration's results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.experts.expert_config import ExpertConfig
from specgate.backends.eagle3.cupy.kernels.experts.launchers import ExpertDown, ExpertGateUp
from specgate.backends.eagle3.cupy.kernels.loader import Kernel, Spec
from specgate.backends.eagle3.cupy.kernels.matmul.gemm_config import GemmConfig
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import AnyConfig, Epilogue, MatmulRows
from specgate.backends.eagle3.cupy.tuned.lookup import EXPERT_DOWN, EXPERT_GATE_UP
from specgate.backends.eagle3.cupy.tuning.product import ROWS, Product, rows_of
from specgate.backends.eagle3.nouns.gemms import GemmShape, Key

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
    """Return the key of its weight, if that has a configuration that can be tried in steps: none by wgmma has."""
    if isinstance(kernel, MatmulRows):
        return None if kernel.wgmma else kernel.weight
    if not isinstance(kernel, ExpertGateUp | ExpertDown):
        return None
    tag = EXPERT_GATE_UP if isinstance(kernel, ExpertGateUp) else EXPERT_DOWN
    return GemmShape(tag, *kernel.weight, kernel.rows, kernel.experts.count, kernel.experts.per_token).key


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

    def fault(self, config: AnyConfig) -> str | None:
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


def first_rows(product: Product, config: AnyConfig, count: int) -> Tensor:
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
