"""gpt-oss' tensors packed for the forward pass, as `eagle3/weights.py` does it for a dense target.

Shapes as there, and E experts, R rows and C columns of one of an expert's two matrices.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass

import torch
from torch import Tensor

from specgate.eagle3.geometry import ExpertGeometry
from specgate.eagle3.mxfp4.coding import decoded
from specgate.eagle3.pair import TargetCheckpoint


@dataclass(frozen=True, slots=True)
class ExpertMatrices:
    """One matrix [R, C] per expert: `blocks` uint8 [E, R, C/32, 16] with `scales` uint8 [E, R, C/32], or `floats`
    [E, C, R], transposed as it is stored. `bias` [E, R].
    """

    bias: Tensor
    floats: Tensor | None
    blocks: Tensor | None
    scales: Tensor | None

    def of(self, expert: int) -> Tensor:
        """The matrix [R, C] of one expert, contiguous, in the dtype of its bias; MXFP4 becomes exactly that."""
        if self.floats is not None:
            return self.floats[expert].t().contiguous()
        assert self.blocks is not None and self.scales is not None
        return decoded(self.blocks[expert], self.scales[expert], self.bias.dtype)


@dataclass(frozen=True, slots=True)
class ExpertLayer:
    """One decoder layer: `qkv` [(N + 2G)·D, H] and `o` [H, N·D] with biases, `sinks` [N], `router` [E, H] and its bias
    [E], `gate_up` of [2F, H] and `down` of [H, F], both norms [H].
    """

    input_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor
    sinks: Tensor
    o: Tensor
    o_bias: Tensor
    post_norm: Tensor
    router: Tensor
    router_bias: Tensor
    gate_up: ExpertMatrices
    down: ExpertMatrices


@dataclass(frozen=True, slots=True)
class GptOssWeights:
    """The target: `embed` and `lm_head` [V, H], final `norm` [H]."""

    embed: Tensor
    layers: tuple[ExpertLayer, ...]
    norm: Tensor
    lm_head: Tensor


def pack_gpt_oss(checkpoint: TargetCheckpoint) -> GptOssWeights:
    """Pack the target. The layers' tensors are removed from the checkpoint, the others stay in it."""
    tensors, geometry = checkpoint.tensors, checkpoint.geometry
    assert geometry.experts is not None
    prefixes = [f"model.layers.{i}." for i in range(geometry.layers)]
    return GptOssWeights(
        embed=tensors["model.embed_tokens.weight"],
        layers=tuple(pack_layer(tensors, prefix, geometry.experts) for prefix in prefixes),
        norm=tensors["model.norm.weight"],
        lm_head=tensors["lm_head.weight"],
    )


def pack_layer(tensors: MutableMapping[str, Tensor], prefix: str, experts: ExpertGeometry) -> ExpertLayer:
    """Pack the tensors whose names start with `prefix`. They are removed from `tensors`."""

    def take(*names: str) -> Tensor:
        found = [tensors.pop(prefix + name) for name in names]
        return found[0] if len(found) == 1 else torch.cat(found)

    def matrices(name: str) -> ExpertMatrices:
        bias = take(f"{name}_bias")
        if experts.mxfp4:
            return ExpertMatrices(bias, None, take(f"{name}_blocks"), take(f"{name}_scales"))
        return ExpertMatrices(bias, take(name), None, None)

    projections = [f"self_attn.{part}_proj" for part in "qkv"]
    return ExpertLayer(
        input_norm=take("input_layernorm.weight"),
        qkv=take(*(f"{name}.weight" for name in projections)),
        qkv_bias=take(*(f"{name}.bias" for name in projections)),
        sinks=take("self_attn.sinks"),
        o=take("self_attn.o_proj.weight"),
        o_bias=take("self_attn.o_proj.bias"),
        post_norm=take("post_attention_layernorm.weight"),
        router=take("mlp.router.weight"),
        router_bias=take("mlp.router.bias"),
        gate_up=matrices("mlp.experts.gate_up_proj"),
        down=matrices("mlp.experts.down_proj"),
    )
