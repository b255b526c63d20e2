"""Weights of a target with a mixture of experts, in the form that the kernels want.

Shapes as in `eagle3/weights.py`, and E experts.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass

import torch
from torch import Tensor

from specgate.backends.cupy_eagle3.kernels.experts.packing import Order, PackedExperts
from specgate.eagle3.pair import TargetCheckpoint
from specgate.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class ExpertLayerWeights:
    """One decoder layer: `qkv` [(N + 2G)·D, H] and `o` [H, N·D] with biases, `sinks` [N], both norms [H], `router`
    [E, H] and its bias [E], and of every expert `gate_up` [2F, H], whose rows alternate, and `down` [H, F].
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
    gate_up: PackedExperts
    down: PackedExperts


@dataclass(frozen=True, slots=True)
class ExpertTargetWeights:
    """The target: `embed` and `lm_head` [V, H], final `norm` [H]."""

    embed: Tensor
    layers: tuple[ExpertLayerWeights, ...]
    norm: Tensor
    lm_head: Tensor


def pack_expert_target(checkpoint: TargetCheckpoint) -> ExpertTargetWeights:
    """Pack a target with experts in MXFP4. The layers' tensors are removed from the checkpoint, the others stay in it.

    Raises CheckpointError for scales that no kernel holds.
    """
    tensors, geometry = checkpoint.tensors, checkpoint.geometry
    layers = []
    for i in range(geometry.layers):
        prefix = f"model.layers.{i}."
        try:
            layers.append(pack_layer(tensors, prefix))
        except ValueError as error:
            raise CheckpointError(
                f"{checkpoint.config_file.parent}: {prefix}mlp.experts: {error}",
                hint="damaged, or not MXFP4: fetch it again",
            ) from error
    return ExpertTargetWeights(
        embed=tensors["model.embed_tokens.weight"],
        layers=tuple(layers),
        norm=tensors["model.norm.weight"],
        lm_head=tensors["lm_head.weight"],
    )


def pack_layer(tensors: MutableMapping[str, Tensor], prefix: str) -> ExpertLayerWeights:
    """Pack the tensors whose names start with `prefix`. They are removed from `tensors`, so that of experts at most one
    matrix of a layer is in memory twice.
    """

    def take(*names: str) -> Tensor:
        found = [tensors.pop(prefix + name) for name in names]
        return found[0] if len(found) == 1 else torch.cat(found)

    def experts(name: str, order: Order) -> PackedExperts:
        blocks, scales, bias = (take(f"mlp.experts.{name}_{part}") for part in ("blocks", "scales", "bias"))
        return PackedExperts.of(blocks, scales, bias, order)

    projections = [f"self_attn.{part}_proj" for part in "qkv"]
    return ExpertLayerWeights(
        input_norm=take("input_layernorm.weight"),
        qkv=take(*(f"{name}.weight" for name in projections)),
        qkv_bias=take(*(f"{name}.bias" for name in projections)),
        sinks=take("self_attn.sinks"),
        o=take("self_attn.o_proj.weight"),
        o_bias=take("self_attn.o_proj.bias"),
        post_norm=take("post_attention_layernorm.weight"),
        router=take("mlp.router.weight"),
        router_bias=take("mlp.router.bias"),
        gate_up=experts("gate_up_proj", Order.PAIRED),
        down=experts("down_proj", Order.PLAIN),
    )
