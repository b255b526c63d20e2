"""gpt-oss' tensors packed for the forward pass, as `lib/weights.py` does it for a dense target.

Shapes as there, and E experts, R rows and C columns of one of an expert's two matrices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specgate.backends.eagle3.lib.mxfp4 import decoded
from specgate.backends.eagle3.lib.pair import TargetCheckpoint
from specgate.backends.eagle3.lib.weights import ExpertLayerWeights, ExpertTargetWeights, pack_expert_target


@dataclass(frozen=True, slots=True)
class ExpertMatrices:
    """One matrix [R, C] per expert: `blocks` uint8 [E, R, C/32, 16] with `scales` uint8 [E, R, C/32], or `floats`
    [E, C, R], transposed as it is stored, or what `of` makes of either, `whole` [E, R, C]. `bias` [E, R].
    """

    bias: Tensor
    floats: Tensor | None
    blocks: Tensor | None
    scales: Tensor | None
    whole: Tensor | None = None

    def of(self, expert: int) -> Tensor:
        """The matrix [R, C] of one expert, contiguous, in the dtype of its bias; MXFP4 becomes exactly that."""
        if self.whole is not None:
            return self.whole[expert]
        if self.floats is not None:
            return self.floats[expert].t().contiguous()
        assert self.blocks is not None and self.scales is not None
        return decoded(self.blocks[expert], self.scales[expert], self.bias.dtype)

    @property
    def whole_bytes(self) -> int:
        """Size of `whole` in bytes."""
        columns = self.blocks.shape[2] * 32 if self.blocks is not None else self.of(0).shape[1]
        return self.bias.numel() * columns * self.bias.itemsize

    def decoded_ahead(self) -> ExpertMatrices:
        """The same with the matrices of all experts as `of` makes them."""
        first = self.of(0)
        whole = torch.empty(len(self.bias), *first.shape, dtype=first.dtype, device=first.device)
        for expert in range(len(whole)):
            whole[expert] = self.of(expert)
        return replace(self, floats=None, blocks=None, scales=None, whole=whole)


ExpertLayer = ExpertLayerWeights[ExpertMatrices]
GptOssWeights = ExpertTargetWeights[ExpertMatrices]


def pack_gpt_oss(checkpoint: TargetCheckpoint) -> GptOssWeights:
    """Pack the target. The layers' tensors are removed from the checkpoint, the others stay in it."""
    experts = checkpoint.geometry.experts
    assert experts is not None

    def matrices(take: Callable[[str], Tensor], name: str) -> ExpertMatrices:
        bias = take(f"{name}_bias")
        if experts.mxfp4:
            return ExpertMatrices(bias, None, take(f"{name}_blocks"), take(f"{name}_scales"))
        return ExpertMatrices(bias, take(name), None, None)

    return pack_expert_target(checkpoint, matrices)
