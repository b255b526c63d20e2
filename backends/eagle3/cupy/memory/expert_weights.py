"""Weights of a target with a mixture of experts, in the form that the kernels want."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.experts.packing import Order, PackedExperts
from specgate.backends.eagle3.lib import weights
from specgate.backends.eagle3.lib.pair import TargetCheckpoint
from specgate.errors import CheckpointError

ExpertLayerWeights = weights.ExpertLayerWeights[PackedExperts]
ExpertTargetWeights = weights.ExpertTargetWeights[PackedExperts]


def pack_expert_target(checkpoint: TargetCheckpoint) -> ExpertTargetWeights:
    """Pack a target with experts in MXFP4. The layers' tensors are removed from the checkpoint, the others stay in it.

    Raises CheckpointError for scales that no kernel holds.
    """

    def packed(take: Callable[[str], Tensor], name: str) -> PackedExperts:
        order = Order.PAIRED if name.endswith("gate_up_proj") else Order.PLAIN
        blocks, scales, bias = (take(f"{name}_{part}") for part in ("blocks", "scales", "bias"))
        try:
            return PackedExperts.of(blocks, scales, bias, order)
        except ValueError as error:
            raise CheckpointError(
                f"{checkpoint.config_file.parent}: {name}: {error}", hint="damaged, or not MXFP4: fetch it again"
            ) from error

    return weights.pack_expert_target(checkpoint, packed)
