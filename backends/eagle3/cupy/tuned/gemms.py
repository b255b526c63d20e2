"""The launchers of a step's products, each with the configuration that was found for its weight, if one was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol, Unpack

from specgate.backends.eagle3.cupy.kernels.experts.expert_config import ExpertConfig
from specgate.backends.eagle3.cupy.kernels.experts.launchers import ExpertDown, ExpertGateUp
from specgate.backends.eagle3.cupy.kernels.matmul.gemm_config import GemmConfig
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import Epilogue, MatmulRows, Switches
from specgate.backends.eagle3.cupy.tuned.lookup import EXPERT_DOWN, EXPERT_GATE_UP, NOTHING_TUNED
from specgate.backends.eagle3.nouns.gemms import GemmShape
from specgate.checkpoints.geometry import TargetGeometry

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
    """A product of a step, and whether its weight's configuration was found."""

    shape: GemmShape
    hit: bool


class Configurations(Protocol):
    """Source of the configuration of a product: `Tuned`, or what a search is trying."""

    def find(self, shape: GemmShape) -> GemmConfig | None:
        """For a step of `shape.m` rows; None where none is known."""

    def find_experts(self, shape: GemmShape) -> ExpertConfig | None:
        """The same for a product of experts."""


class Gemms:
    """Makes the launchers of the products of one step, and remembers which products it was asked for."""

    def __init__(self, tuned: Configurations = NOTHING_TUNED) -> None:
        self.tuned = tuned
        self.lookups: list[Lookup] = []

    def __call__(
        self, tag: str, n_out: int, k_in: int, rows: int, *, partial: bool = False, **switches: Unpack[Switches]
    ) -> MatmulRows:
        """The launcher of product `tag`. `partial`: its sums are left as they are, since other GPUs have the rest of k.

        k is split in one way for a weight, whatever the rows: another split would round in another order.
        """
        epilogue = Epilogue.PLAIN if partial else EPILOGUES[tag]
        shape = GemmShape(tag, n_out * parts(epilogue), k_in, rows)
        config = self.tuned.find(shape)
        self.lookups.append(Lookup(shape, config is not None))
        return MatmulRows(n_out, k_in, epilogue, rows, config or GemmConfig().at(rows), **switches)

    def expert_gate_up(self, g: TargetGeometry, rows: int) -> ExpertGateUp:
        """The launcher of the first product of the experts of `g`."""
        assert g.experts is not None
        config = self._of_experts(EXPERT_GATE_UP, 2 * g.intermediate, g.hidden, g, rows)
        return ExpertGateUp(g.intermediate, g.hidden, g.experts, rows, config)

    def expert_down(self, g: TargetGeometry, rows: int, *, partial: bool) -> ExpertDown:
        """The launcher of the second product of the experts of `g`."""
        assert g.experts is not None
        config = self._of_experts(EXPERT_DOWN, g.hidden, g.intermediate, g, rows)
        return ExpertDown(g.hidden, g.intermediate, g.experts, rows, config, partial=partial)

    def _of_experts(self, tag: str, n: int, k: int, g: TargetGeometry, rows: int) -> ExpertConfig | None:
        assert g.experts is not None
        shape = GemmShape(tag, n, k, rows, g.experts.count, g.experts.per_token)
        config = self.tuned.find_experts(shape)
        self.lookups.append(Lookup(shape, config is not None))
        return config

    @property
    def shapes(self) -> tuple[GemmShape, ...]:
        return tuple(lookup.shape for lookup in self.lookups)

    @property
    def counters(self) -> dict[str, int]:
        """Counters that a block of this step reports."""
        return {"tuned_total": len(self.lookups), "tuned_hits": sum(lookup.hit for lookup in self.lookups)}
