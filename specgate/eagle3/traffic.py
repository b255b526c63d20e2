"""What the passes of a pair must move at least, from its geometry: shared by the engines that decode it."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from specgate.core import Traffic
from specgate.core.traffic import AttentionTraffic, DraftTraffic, PassTraffic
from specgate.eagle3.checkpoint import Wanted
from specgate.eagle3.geometry import DraftGeometry, TargetGeometry
from specgate.eagle3.layout import draft_tensors, target_tensors
from specgate.eagle3.memory import weight_bytes


def pair_traffic(target: TargetGeometry, draft: DraftGeometry | None, dtype: torch.dtype) -> Traffic:
    """Of a pair whose weights and caches are all in `dtype`."""
    return Traffic(target_traffic(target, dtype), draft_traffic(draft, dtype) if draft else None)


def target_traffic(g: TargetGeometry, dtype: torch.dtype) -> PassTraffic:
    """All weights; of the embedding a row per token, but where it is the LM head as well, the whole of it."""
    return PassTraffic(
        weight_bytes=weight_bytes(without(target_tensors(g), *([] if g.tied_embeddings else ["embed_tokens"])), dtype),
        token_bytes=0 if g.tied_embeddings else g.hidden * dtype.itemsize,
        attention=(attention(g, g.layers, None, dtype),),
    )


def draft_traffic(g: DraftGeometry, dtype: torch.dtype) -> DraftTraffic:
    """The extension reads `fc` and its norms once, and like every step the layer and the small LM head."""
    weights = without(draft_tensors(g, has_d2t=False, has_t2d=False), "embed_tokens", "d2t")
    borrowed = 0 if g.own_lm_head else g.draft_vocab * g.hidden * dtype.itemsize
    extension, step = (
        PassTraffic(
            weight_bytes=weight_bytes(read, dtype) + borrowed,
            token_bytes=g.hidden * dtype.itemsize,
            attention=(attention(g, 1, g.window, dtype),),
        )
        for read in (weights, without(weights, "fc", "fc_norm", "input_norm"))
    )
    return DraftTraffic(extension, step)


def attention(
    g: TargetGeometry | DraftGeometry, layers: int, window: int | None, dtype: torch.dtype
) -> AttentionTraffic:
    return AttentionTraffic(layers, 2 * g.kv_heads * g.head_dim * dtype.itemsize, window)


def without(wanted: Mapping[str, Wanted], *modules: str) -> dict[str, Wanted]:
    """The tensors that belong to none of `modules`."""
    return {name: want for name, want in wanted.items() if not set(modules) & set(name.split("."))}
