"""Checkpoint tensors, packed as the forward pass wants them, and MXFP4 numbers decoded and encoded.

A number times its scale has so few bits that it is exact in bfloat16 and float32.

Shapes: H hidden size of the target, Hd of the draft, N query heads, G key/value heads, D head size, F intermediate
size, V vocabulary, W draft vocabulary, n auxiliary hidden states, E experts.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from functools import cache
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from specgate.backends.eagle3.lib.pair import DraftCheckpoint, TargetCheckpoint
from specgate.checkpoints.hf.target import require_dense
from specgate.checkpoints.mxfp4 import BIAS, BLOCK, BYTES, NO_NUMBER, VALUES


def decoded(blocks: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """The numbers [..., 32 · n] in `dtype` of `blocks` uint8 [..., n, 16] and `scales` uint8 [..., n]."""
    exact = torch.bfloat16 if dtype == torch.bfloat16 else torch.float32
    words = words_of_bytes(exact, blocks.device)[blocks.int()]
    factors = torch.ldexp(torch.ones_like(scales, dtype=torch.float32), scales.int() - BIAS).to(exact)
    return (words.view(exact) * factors[..., None]).flatten(-2).to(dtype)


@cache
def words_of_bytes(dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the two numbers of every byte in `dtype`, as an integer [256] of both. The lower half comes first."""
    values = torch.tensor(VALUES, dtype=dtype, device=device)
    pairs = torch.stack((values.repeat(16), values.repeat_interleave(16)), dim=-1)
    return pairs.view(torch.int32 if dtype == torch.bfloat16 else torch.int64).squeeze(-1)


def encoded(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """(blocks, scales) nearest to `numbers` [..., 32 · n]; ties go to the even number, as the MX specification asks.

    The scale of a block is the power of two of its largest number, less the two that the largest element has: what MX
    1.0, section 6.3, does. Numbers beyond 6 scales become 6 scales.
    """
    grouped = numbers.float().view(*numbers.shape[:-1], -1, BLOCK)
    largest = grouped.abs().amax(-1)
    _, exponent = torch.frexp(largest)  # largest = m · 2^exponent with 0.5 ≤ m < 1
    shift = torch.where(largest > 0, exponent - 3, -BIAS).clamp(-BIAS, NO_NUMBER - 1 - BIAS)
    scaled = torch.ldexp(grouped, -shift[..., None])
    size = scaled.abs()
    steps = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))
    rounded = (torch.round(size / steps) * steps).clamp(max=VALUES[7])
    table = torch.tensor(VALUES[:8], dtype=torch.float32, device=numbers.device)
    codes = torch.bucketize(rounded, table) + 8 * scaled.signbit()
    low, high = codes.view(*codes.shape[:-1], BYTES, 2).unbind(-1)
    return (low | high << 4).to(torch.uint8), (shift + BIAS).to(torch.uint8)


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer: `qkv` [(N + 2G)·D, in], `o` [H, N·D], `gate_up` [2F, H], `down` [H, F], both norms [H].

    `head_norms` [2, D]: norms of the queries and of the keys of every head, if it has them.
    """

    input_norm: Tensor
    qkv: Tensor
    o: Tensor
    post_norm: Tensor
    gate_up: Tensor
    down: Tensor
    head_norms: Tensor | None = None


@dataclass(frozen=True, slots=True)
class TargetWeights:
    """The target: `embed` and `lm_head` [V, H] (the same tensor where they are tied), final `norm` [H].

    Of a target that is split among GPUs it is one rank's part, as `shard.py` has it.
    """

    embed: Tensor
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    lm_head: Tensor


Matrices = TypeVar("Matrices", covariant=True)
"""How an engine keeps one matrix of every expert, with its bias."""


@dataclass(frozen=True, slots=True)
class ExpertLayerWeights(Generic[Matrices]):
    """One decoder layer of gpt-oss: `qkv` [(N + 2G)·D, H] and `o` [H, N·D] with biases, `sinks` [N], both norms [H],
    `router` [E, H] and its bias [E], and of every expert `gate_up` [2F, H], whose rows alternate, and `down` [H, F].
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
    gate_up: Matrices
    down: Matrices


@dataclass(frozen=True, slots=True)
class ExpertTargetWeights(Generic[Matrices]):
    """A target with experts: `embed` and `lm_head` [V, H], final `norm` [H].

    Of a target that is split among GPUs it is one rank's part, as `shard.py` has it.
    """

    embed: Tensor
    layers: tuple[ExpertLayerWeights[Matrices], ...]
    norm: Tensor
    lm_head: Tensor


class Vocabulary(Protocol):
    """Weights that a draft may borrow of any target: `embed` and `lm_head` [V, H]."""

    @property
    def embed(self) -> Tensor: ...

    @property
    def lm_head(self) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class DraftWeights:
    """The draft: `fc` [Hd, n·H] projects the auxiliary hidden states, `lm_head` is [W, Hd].

    `layer.input_norm` is applied to the embedding and `feature_norm` to the hidden state. `concat_norm` and
    `chunk_norms` belong to the variants `norm_before_fc` and `fc_norm`. `target_ids` int64 [W] are absolute target
    token ids.
    """

    embed: Tensor
    fc: Tensor
    concat_norm: Tensor | None
    chunk_norms: tuple[Tensor, ...]
    feature_norm: Tensor
    layer: LayerWeights
    norm: Tensor
    lm_head: Tensor
    target_ids: Tensor


def pack_layer(tensors: MutableMapping[str, Tensor], prefix: str) -> LayerWeights:
    """Pack the Hugging Face tensors whose names start with `prefix`.

    They are removed from `tensors`, so that at most one layer is in memory twice.
    """

    def take(*names: str) -> Tensor:
        parts = [tensors.pop(f"{prefix}{name}.weight") for name in names]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    norms = [name for name in ("self_attn.q_norm", "self_attn.k_norm") if f"{prefix}{name}.weight" in tensors]
    return LayerWeights(
        input_norm=take("input_layernorm"),
        qkv=take("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        o=take("self_attn.o_proj"),
        post_norm=take("post_attention_layernorm"),
        gate_up=take("mlp.gate_proj", "mlp.up_proj"),
        down=take("mlp.down_proj"),
        head_norms=torch.stack([take(name) for name in norms]) if norms else None,
    )


def pack_expert_target(
    checkpoint: TargetCheckpoint, matrices: Callable[[Callable[[str], Tensor], str], Matrices]
) -> ExpertTargetWeights[Matrices]:
    """Pack a target with experts. The layers' tensors are removed from the checkpoint, so that of experts at most one
    matrix of a layer is in memory twice; the others stay in it.

    `matrices` makes what an engine keeps of one matrix of all experts: it takes tensors out of the checkpoint by their
    names, which begin with the second argument, such as `model.layers.0.mlp.experts.down_proj`.
    """
    tensors, geometry = checkpoint.tensors, checkpoint.geometry

    def layer(prefix: str) -> ExpertLayerWeights[Matrices]:
        def take(*names: str) -> Tensor:
            parts = [tensors.pop(prefix + name) for name in names]
            return parts[0] if len(parts) == 1 else torch.cat(parts)

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
            gate_up=matrices(tensors.pop, f"{prefix}mlp.experts.gate_up_proj"),
            down=matrices(tensors.pop, f"{prefix}mlp.experts.down_proj"),
        )

    return ExpertTargetWeights(
        embed=tensors["model.embed_tokens.weight"],
        layers=tuple(layer(f"model.layers.{i}.") for i in range(geometry.layers)),
        norm=tensors["model.norm.weight"],
        lm_head=tensors["lm_head.weight"],
    )


def pack_target(checkpoint: TargetCheckpoint) -> TargetWeights:
    """Pack a dense target. The layers' tensors are removed from the checkpoint, the others stay in it.

    Raises CheckpointError for a mixture of experts.
    """
    tensors, geometry = checkpoint.tensors, checkpoint.geometry
    require_dense(geometry, checkpoint.config_file, "this engine")
    embed = tensors["model.embed_tokens.weight"]
    if geometry.tied_embeddings:
        span = checkpoint.shard.span("lm_head.weight", tuple(embed.shape))
        head = embed if span is None else embed[span.start : span.stop]
    else:
        head = tensors["lm_head.weight"]
    return TargetWeights(
        embed=embed,
        layers=tuple(pack_layer(tensors, f"model.layers.{i}.") for i in range(geometry.layers)),
        norm=tensors["model.norm.weight"],
        lm_head=head,
    )


def pack_draft(checkpoint: DraftCheckpoint, target: Vocabulary) -> DraftWeights:
    """Pack the draft. Where it has no embedding or LM head of its own, it gets the target's."""
    tensors, geometry = checkpoint.tensors, checkpoint.geometry
    rows = torch.arange(geometry.draft_vocab, device=target.embed.device)
    return DraftWeights(
        embed=tensors["embed_tokens.weight"] if geometry.own_embedding else target.embed,
        fc=tensors["fc.weight"],
        concat_norm=tensors["input_norm.weight"] if geometry.norm_before_fc else None,
        chunk_norms=tuple(tensors[f"fc_norm.{i}.weight"] for i in range(geometry.features)) if geometry.fc_norm else (),
        feature_norm=tensors["midlayer.hidden_norm.weight"],
        layer=pack_layer(tensors, "midlayer."),
        norm=tensors["norm.weight"],
        lm_head=tensors["lm_head.weight"] if geometry.own_lm_head else target.lm_head,
        target_ids=rows if checkpoint.d2t is None else rows + checkpoint.d2t.to(rows.device),
    )
