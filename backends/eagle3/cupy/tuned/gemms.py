"""The launchers of a step's products, each with the configuration that was found for its weight, if one was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol, Unpack

from specgate.backends.eagle3.cupy.kernels.experts.expert_config import ExpertConfig
from specgate.backends.eagle3.cupy.kernels.experts.launchers import ExpertDown, ExpertGateUp
from specgate.backends.eagle3.cupy.kernels.loader import declared_shared_bytes
from specgate.backends.eagle3.cupy.kernels.matmul.gemm_config import MANY_ROWS, GemmConfig
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import AnyConfig, Epilogue, MatmulRows, Switches
from specgate.backends.eagle3.cupy.tuned.lookup import EXPERT_DOWN, EXPERT_GATE_UP, NOTHING_TUNED
from specgate.backends.eagle3.nouns.gemms import GemmShape
from specgate.checkpoints.geometry import ExpertGeometry, TargetGeometry
from specgate.contract.samples.counters import TUNED_BY_RULE, TUNED_HITS, TUNED_TOTAL
from specgate.contract.traces import TunedProduct, launch_name

OF_A_LAYER: Final[Mapping[str, Epilogue]] = {
    "QKV": Epilogue.PLAIN,
    "O": Epilogue.RESIDUAL,
    "FFN_GATE_UP": Epilogue.SWIGLU,
    "FFN_DOWN": Epilogue.RESIDUAL,
}
EPILOGUES: Final[Mapping[str, Epilogue]] = {
    "EAGLE3_FC": Epilogue.PLAIN,
    **{f"EAGLE3_{product}": epilogue for product, epilogue in OF_A_LAYER.items()},
    "EAGLE3_LM_HEAD_SMALLVOC": Epilogue.PLAIN,
    **{f"TARGET_{product}": epilogue for product, epilogue in OF_A_LAYER.items()},
    "TARGET_LM_HEAD": Epilogue.PLAIN,
}
"""Every product of a step but those of experts by its tag, and what becomes of its sums."""


def parts(epilogue: Epilogue) -> int:
    """Rows of the weight per output feature: SWIGLU takes two, a gate row and an up row."""
    return 2 if epilogue is Epilogue.SWIGLU else 1


@dataclass(frozen=True, slots=True)
class Lookup:
    """A product of a step, its launcher, and whether a configuration was found for its weight."""

    shape: GemmShape
    launcher: MatmulRows | ExpertGateUp | ExpertDown
    found: bool

    @property
    def searched(self) -> bool:
        """Whether a search knows products of so many rows. Without wgmma, a rule divides more than MANY_ROWS."""
        return bool(self.shape.experts) or self.shape.m <= MANY_ROWS or self.by_wgmma

    @property
    def by_wgmma(self) -> bool:
        """Return whether the sums of the product are those of a warpgroup."""
        return isinstance(self.launcher, MatmulRows) and self.launcher.wgmma is not None

    @property
    def hit(self) -> bool:
        """Whether the product runs as it was tuned."""
        return self.found and self.searched


class Configurations(Protocol):
    """Source of the configuration of a product: `Tuned`, or what a search is trying."""

    def find(self, shape: GemmShape, largest_step: int = 0) -> AnyConfig | None:
        """For a step of `shape.m` rows, in an engine whose largest has `largest_step`; None where none is known."""

    def find_experts(self, shape: GemmShape) -> ExpertConfig | None:
        """The same for a product of experts."""


class Gemms:
    """Makes the launchers of the products of one step, and remembers which products it was asked for.

    `largest_step`: rows of the engine's largest step, by which a weight's sums are those of `mma` or of `wgmma` in all
    of its steps.
    """

    def __init__(self, tuned: Configurations = NOTHING_TUNED, largest_step: int = 0) -> None:
        self.tuned, self.largest_step = tuned, largest_step
        self.lookups: list[Lookup] = []

    def __call__(
        self, tag: str, n_out: int, k_in: int, rows: int, *, partial: bool = False, **switches: Unpack[Switches]
    ) -> MatmulRows:
        """The launcher of product `tag`. `partial`: its sums are left as they are, since other GPUs have the rest of k.

        k is split in one way for a weight, whatever the rows: another split would round in another order.
        """
        epilogue = Epilogue.PLAIN if partial else EPILOGUES[tag]
        shape = GemmShape(tag, n_out * parts(epilogue), k_in, rows)
        config = self.tuned.find(shape, self.largest_step)
        launcher = MatmulRows(n_out, k_in, epilogue, rows, config or GemmConfig().at(rows), **switches)
        self.lookups.append(Lookup(shape, launcher, config is not None))
        return launcher

    def experts(self, g: TargetGeometry, rows: int, *, partial: bool) -> tuple[ExpertGateUp, ExpertDown]:
        """The launchers of the two products of the experts of `g`."""
        assert g.experts is not None
        of = g.experts, rows
        first = shape_of_experts(EXPERT_GATE_UP, 2 * g.intermediate, g.hidden, *of)
        second = shape_of_experts(EXPERT_DOWN, g.hidden, g.intermediate, *of)
        configs = self.tuned.find_experts(first), self.tuned.find_experts(second)
        gate_up = ExpertGateUp(g.intermediate, g.hidden, *of, configs[0])
        down = ExpertDown(g.hidden, g.intermediate, *of, configs[1], partial=partial)
        self.lookups.append(Lookup(first, gate_up, configs[0] is not None))
        self.lookups.append(Lookup(second, down, configs[1] is not None))
        return gate_up, down

    def products(self, device: int) -> Iterator[TunedProduct]:
        """Yield the products, each as the configuration that is found for its weight now has it launched on a CUDA
        device. Its launcher may run otherwise: that shows who compares the two.
        """
        for lookup in self.lookups:
            launch = launch_by(self._as_tuned(lookup), device) if lookup.found else None
            name, kernel = f"{lookup.shape} of {lookup.shape.m} rows", function_of(lookup.launcher)
            yield TunedProduct(name, kernel, launch, by_rule=not lookup.searched)

    def _as_tuned(self, lookup: Lookup) -> MatmulRows | ExpertGateUp | ExpertDown:
        """The launcher of a product, made anew with what is found for it."""
        if isinstance(lookup.launcher, MatmulRows):
            config = self.tuned.find(lookup.shape, self.largest_step)
            return lookup.launcher.retiled(config) if config is not None else lookup.launcher
        of_experts = self.tuned.find_experts(lookup.shape)
        return lookup.launcher.retiled(of_experts) if of_experts is not None else lookup.launcher

    @property
    def shapes(self) -> tuple[GemmShape, ...]:
        return tuple(lookup.shape for lookup in self.lookups)

    @property
    def counters(self) -> dict[str, int]:
        """Counters that a block of this step reports."""
        return {
            TUNED_TOTAL: len(self.lookups),
            TUNED_HITS: sum(lookup.hit for lookup in self.lookups),
            TUNED_BY_RULE: sum(lookup.found and not lookup.searched for lookup in self.lookups),
        }


def shape_of_experts(tag: str, n: int, k: int, experts: ExpertGeometry, rows: int) -> GemmShape:
    return GemmShape(tag, n, k, rows, experts.count, experts.per_token)


def function_of(launcher: MatmulRows | ExpertGateUp | ExpertDown) -> str:
    """Name of the function that a launcher launches."""
    return launcher.name if isinstance(launcher, MatmulRows) else launcher.spec.stem


def launch_by(launcher: MatmulRows | ExpertGateUp | ExpertDown, device: int) -> str:
    """The name of a launch on CUDA device `device`, with the shared memory that its kernel declares itself."""
    name = function_of(launcher)
    shared = launcher.shared_bytes + declared_shared_bytes(launcher.spec, name, device)
    return launch_name(name, launcher.grid, (launcher.threads,), shared)
