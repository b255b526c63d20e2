"""Memory traffic that passes need, from geometry, and from a pair's configs under a scenario's options."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from specgate.backends.eagle3.lib.kv.modes import AS_COMPUTED, KvMode, KvModes, position_bytes
from specgate.backends.eagle3.lib.layout import expert_tensors, target_tensors
from specgate.backends.eagle3.lib.memory import weight_bytes
from specgate.checkpoints.geometry import DraftGeometry, ExpertGeometry, TargetGeometry
from specgate.checkpoints.heads.tensors import Wanted, draft_tensors
from specgate.contract import Traffic
from specgate.contract.traffic import AttentionTraffic, DraftTraffic, ExpertTraffic, LinkTraffic, PassTraffic


def pair_traffic(
    target: TargetGeometry,
    draft: DraftGeometry | None,
    dtype: torch.dtype,
    kv: KvModes = AS_COMPUTED,
    link: LinkTraffic | None = None,
) -> Traffic:
    """Traffic of target and draft in bytes, where all weights are stored in `dtype`, and KV caches as `kv` says.

    Of several GPUs that share the target, `target` is the part of one, and `link` what they tell each other.
    """
    of_draft = draft_traffic(draft, dtype, kv.draft) if draft else None
    return Traffic(target_traffic(target, dtype, kv.target), of_draft, link)


def target_traffic(g: TargetGeometry, dtype: torch.dtype, kv: KvMode | None = None) -> PassTraffic:
    """Traffic of one pass of the target.

    A pass reads every weight once. Of the embedding it reads one row per token. Where the embedding is also the LM head
    (tied), the whole matrix is read anyway and the rows cost nothing more. Of a mixture of experts it reads those that
    its tokens choose.
    """
    read = without(target_tensors(g), "experts", *([] if g.tied_embeddings else ["embed_tokens"]))
    windows = [g.window(layer) for layer in range(g.layers)]
    return PassTraffic(
        weight_bytes=weight_bytes(read, dtype),
        token_bytes=0 if g.tied_embeddings else g.hidden * dtype.itemsize,
        attention=tuple(attention(g, windows.count(window), window, dtype, kv) for window in dict.fromkeys(windows)),
        experts=expert_traffic(g, g.experts, dtype) if g.experts else None,
    )


def expert_traffic(g: TargetGeometry, experts: ExpertGeometry, dtype: torch.dtype) -> ExpertTraffic:
    """Traffic of the experts: both matrices and their biases, as they are stored."""
    layer = weight_bytes(expert_tensors("", g, experts), dtype)
    router = weight_bytes(without(expert_tensors("", g, experts), "experts"), dtype)
    return ExpertTraffic(g.layers, experts.count, experts.per_token, (layer - router) // experts.count)


def draft_traffic(g: DraftGeometry, dtype: torch.dtype, kv: KvMode | None = None) -> DraftTraffic:
    """Traffic of the draft: the pass that extends it over the accepted tokens, and a recurrent step.

    Both read the decoder layer and the LM head over the draft vocabulary. Only the extension reads `fc` and the norms
    in front of it.
    """
    weights = without(draft_tensors(g, has_d2t=False, has_t2d=False), "embed_tokens", "d2t")
    borrowed = 0 if g.own_lm_head else g.draft_vocab * g.hidden * dtype.itemsize
    extension, step = (
        PassTraffic(
            weight_bytes=weight_bytes(read, dtype) + borrowed,
            token_bytes=g.hidden * dtype.itemsize,
            attention=(attention(g, 1, g.window, dtype, kv),),
        )
        for read in (weights, without(weights, "fc", "fc_norm", "input_norm"))
    )
    return DraftTraffic(extension, step)


def attention(
    g: TargetGeometry | DraftGeometry, layers: int, window: int | None, dtype: torch.dtype, kv: KvMode | None = None
) -> AttentionTraffic:
    """Traffic of attention: keys and values of one position in one layer are 2 · kv_heads · head_dim elements. `kv`:
    the format that they are cached in; None for `dtype`.
    """
    return AttentionTraffic(layers, position_bytes(kv, g.kv_heads, g.head_dim, dtype.itemsize), window)


def without(tensors: Mapping[str, Wanted], *modules: str) -> dict[str, Wanted]:
    """Return the `tensors` whose dotted names contain none of `modules`."""
    return {name: want for name, want in tensors.items() if not set(modules) & set(name.split("."))}
