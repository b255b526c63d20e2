"""The draft's trainable tensors, its vocabulary and initialisation, and its folder when it is trained."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from specgate.backends.eagle3.lib.hf_write import draft_config, write_checkpoint
from specgate.backends.eagle3.lib.pair import DraftCheckpoint, TargetCheckpoint
from specgate.backends.eagle3.lib.weights import DraftWeights, TargetWeights, pack_layer
from specgate.backends.eagle3.pair_tools.train.data import Batch
from specgate.backends.eagle3.pair_tools.train.target import FrozenTarget
from specgate.backends.eagle3.reference.ops import target_argmax
from specgate.backends.eagle3.reference.target import target_logits
from specgate.checkpoints.geometry import DraftGeometry
from specgate.checkpoints.hf.draft import TRAINED_FOR
from specgate.errors import UsageError

ROWS_AT_ONCE = 8192
"""Rows whose logits over the whole vocabulary are in memory at a time."""


@torch.no_grad()
def preferred_counts(target: FrozenTarget, batches: Iterator[Batch], count: int) -> Tensor:
    """Count the target's greedy choices of each token, int64 [V], over the learned rows of `count` batches."""
    counts = torch.zeros(target.geometry.vocab, dtype=torch.long, device=target.weights.embed.device)
    for batch in islice(batches, count):
        _, stream = target.features_and_stream(batch.tokens, batch.rows)
        learned = stream[:, max(0, batch.learned_from - 1) :].flatten(0, 1)
        for rows in torch.split(learned, ROWS_AT_ONCE):
            chosen = target_argmax(target_logits(target.weights, target.geometry, rows))
            counts += torch.bincount(chosen, minlength=len(counts))
    return counts


def draft_vocabulary(counts: Tensor, size: int) -> Tensor:
    """The `size` ids with the largest `counts` [V], ascending, int64 [W]. The lower id wins a tie.

    Raises UsageError for a size that the vocabulary does not have.
    """
    if not 0 < size <= len(counts):
        raise UsageError(f"draft vocabulary of {size} tokens", hint=f"the target has {len(counts)}")
    ranked = counts.sort(descending=True, stable=True).indices
    return ranked[:size].sort().values


def coverage(counts: Tensor, target_ids: Tensor) -> float:
    """Share of the counted tokens that the draft vocabulary contains."""
    return float(counts[target_ids].sum() / counts.sum())


def offsets_and_mask(target_ids: Tensor, vocab: int) -> tuple[Tensor, Tensor]:
    """The checkpoint's `d2t` (int64 [W], target id minus draft id) and `t2d` (bool [V])."""
    d2t = target_ids - torch.arange(len(target_ids), device=target_ids.device)
    t2d = torch.zeros(vocab, dtype=torch.bool, device=target_ids.device)
    t2d[target_ids] = True
    return d2t, t2d


@dataclass(frozen=True, slots=True)
class TrainableDraft:
    """Float32 master tensors by checkpoint name.

    `fc.weight` is multiplied by `feature_scale` [n·H], the spread of each channel of the auxiliary hidden states. Their
    sizes differ by orders of magnitude, and with the scale one learning rate suits all of them. `named` divides it out
    again. `target_ids` int64 [W] are the draft vocabulary.
    """

    geometry: DraftGeometry
    tensors: dict[str, Tensor]
    feature_scale: Tensor
    target_ids: Tensor

    @classmethod
    def initialise(
        cls, geometry: DraftGeometry, target: TargetWeights, target_ids: Tensor, feature_scale: Tensor, seed: int
    ) -> TrainableDraft:
        """A new draft.

        LM head and final norm are copied from the target. `fc` passes the last auxiliary hidden state through. The rest
        is small and random.
        """
        g, device = geometry, target.embed.device
        generator = torch.Generator().manual_seed(seed)

        def random(rows: int, columns: int, std: float = 0.02) -> Tensor:
            return (torch.randn(rows, columns, generator=generator) * std).to(device)

        def ones() -> Tensor:
            return torch.ones(g.hidden, device=device)

        fc = random(g.hidden, g.features * g.target_hidden, 0.25 * (g.features * g.target_hidden) ** -0.5)
        fc[:, -g.target_hidden :].diagonal().add_(1.0)
        tensors = {
            "fc.weight": fc,
            "midlayer.input_layernorm.weight": ones(),
            "midlayer.hidden_norm.weight": ones(),
            "midlayer.self_attn.q_proj.weight": random(g.heads * g.head_dim, 2 * g.hidden),
            "midlayer.self_attn.k_proj.weight": random(g.kv_heads * g.head_dim, 2 * g.hidden),
            "midlayer.self_attn.v_proj.weight": random(g.kv_heads * g.head_dim, 2 * g.hidden),
            "midlayer.self_attn.o_proj.weight": random(g.hidden, g.heads * g.head_dim),
            "midlayer.post_attention_layernorm.weight": ones(),
            "midlayer.mlp.gate_proj.weight": random(g.intermediate, g.hidden),
            "midlayer.mlp.up_proj.weight": random(g.intermediate, g.hidden),
            "midlayer.mlp.down_proj.weight": random(g.hidden, g.intermediate),
            "norm.weight": target.norm.float().clone(),
            "lm_head.weight": target.lm_head[target_ids].float().clone(),
        }
        trainable = {name: tensor.requires_grad_() for name, tensor in tensors.items()}
        return cls(geometry, trainable, feature_scale.to(device), target_ids)

    @classmethod
    def resume(cls, draft: DraftCheckpoint, feature_scale: Tensor) -> TrainableDraft:
        """Continue from a draft in the plain EAGLE-3 layout, with its vocabulary. Raises UsageError for others."""
        g = draft.geometry
        if g.own_embedding or not g.own_lm_head or g.fc_norm or g.norm_before_fc or draft.d2t is None:
            raise UsageError(
                "the draft to continue from has norms, an embedding or a head of another kind",
                hint="only the layout that this trainer writes can be continued",
            )
        tensors = {name: tensor.float().clone() for name, tensor in draft.tensors.items()}
        tensors["fc.weight"] *= feature_scale
        trainable = {name: tensor.requires_grad_() for name, tensor in tensors.items()}
        target_ids = draft.d2t + torch.arange(g.draft_vocab, device=draft.d2t.device)
        return cls(g, trainable, feature_scale, target_ids)

    @property
    def matrices(self) -> list[Tensor]:
        """The matrices between hidden spaces: without the LM head and the norms."""
        return [t for name, t in self.tensors.items() if t.dim() == 2 and name != "lm_head.weight"]

    @property
    def others(self) -> list[Tensor]:
        """The LM head and the norms."""
        return [t for name, t in self.tensors.items() if t.dim() == 1 or name == "lm_head.weight"]

    def named(self) -> dict[str, Tensor]:
        """The tensors as a checkpoint holds them, still float32 and differentiable."""
        return self.tensors | {"fc.weight": self.tensors["fc.weight"] / self.feature_scale}

    def weights(self, target: TargetWeights) -> DraftWeights:
        """The tensors packed for the forward pass, in the target's dtype. Gradients flow back to the master tensors."""
        tensors = {name: tensor.to(target.embed.dtype) for name, tensor in self.named().items()}
        return DraftWeights(
            embed=target.embed,
            fc=tensors["fc.weight"],
            concat_norm=None,
            chunk_norms=(),
            feature_norm=tensors["midlayer.hidden_norm.weight"],
            layer=pack_layer(tensors, "midlayer."),
            norm=tensors["norm.weight"],
            lm_head=tensors["lm_head.weight"],
            target_ids=self.target_ids,
        )


def channel_spread(features: Tensor) -> Tensor:
    """A robust standard deviation of every channel, [n·H]: the median of |x| over `features` [B, T, n·H] / 0.6745."""
    rows = features.flatten(0, 1).float().abs()
    return rows.median(dim=0).values.clamp(min=1e-6) / 0.6745


def export(draft: TrainableDraft, folder: Path, target: TargetCheckpoint, boundaries: tuple[int, ...]) -> None:
    """Write `folder/model.safetensors` (bfloat16, with `d2t` and `t2d`) and `folder/config.json`."""
    tensors = {name: t.detach().to(torch.bfloat16).cpu().contiguous() for name, t in draft.named().items()}
    tensors["d2t"], tensors["t2d"] = (t.cpu() for t in offsets_and_mask(draft.target_ids, draft.geometry.vocab))
    keys = draft_config(draft.geometry, boundaries, "bfloat16") | {TRAINED_FOR: {"sha256": target.sha256}}
    write_checkpoint(folder, keys, tensors)
