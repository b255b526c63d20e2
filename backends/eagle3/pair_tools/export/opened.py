"""A pair that is to be exported: configs translated, tensors checked, weights not read yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from specgate.backends.eagle3.lib.pair import DraftFiles, TargetFiles, open_draft, open_target
from specgate.backends.eagle3.pair_tools.shards import LazyTensor, lazy_tensors
from specgate.contract import PairRef


@dataclass(frozen=True, slots=True)
class OpenPair:
    """An opened pair. The hashes are over weights and configs, as in results."""

    ref: PairRef
    target: TargetFiles
    draft: DraftFiles
    target_sha256: str
    draft_sha256: str


def open_pair(ref: PairRef) -> OpenPair:
    """Open the pair. Raises CheckpointError for a pair that specgate itself could not run."""
    assert ref.draft is not None
    target = open_target(ref.target)
    target_sha256 = target.sha256()
    draft = open_draft(ref.draft, target.geometry, target_sha256=target_sha256)
    return OpenPair(ref, target, draft, target_sha256, draft.sha256())


def target_tensors(pair: OpenPair, dtype: torch.dtype | None) -> dict[str, LazyTensor]:
    """The target's tensors by Hugging Face name, floats in `dtype` or as stored; without a tied `lm_head.weight`."""
    return cast(lazy_tensors(pair.target.source, pair.target.wanted), dtype)


def draft_tensors(pair: OpenPair, dtype: torch.dtype | None) -> dict[str, LazyTensor]:
    """The draft's tensors by the EAGLE authors' names, floats in `dtype` or as stored.

    `lm_head.weight` is always there, because engines differ in what they do without one. With a reduced vocabulary,
    `d2t` (int64, offsets) and `t2d` (bool) are there too.
    """
    draft = pair.draft
    stored = lazy_tensors(draft.source, [draft.names[name] for name in draft.weights])
    tensors = {name: stored[draft.names[name]] for name in draft.weights}
    if "lm_head.weight" not in tensors:
        tensors["lm_head.weight"] = target_head(pair.target)
    if draft.d2t is not None:
        t2d = mask_of(draft.d2t, draft.geometry.vocab) if draft.t2d is None else draft.t2d
        tensors |= {"d2t": in_memory(draft.d2t), "t2d": in_memory(t2d)}
    return cast(tensors, dtype)


def target_head(target: TargetFiles) -> LazyTensor:
    """The target's LM head, which is its embedding where they are tied."""
    name = "model.embed_tokens.weight" if target.geometry.tied_embeddings else "lm_head.weight"
    return lazy_tensors(target.source, [name])[name]


def mask_of(d2t: Tensor, vocab: int) -> Tensor:
    """bool [vocab], true for target tokens that the draft knows."""
    ids = d2t + torch.arange(len(d2t))
    return torch.zeros(vocab, dtype=torch.bool).index_fill(0, ids, True)


def in_memory(tensor: Tensor) -> LazyTensor:
    return LazyTensor(tuple(tensor.shape), tensor.dtype, lambda: tensor)


def cast(tensors: Mapping[str, LazyTensor], dtype: torch.dtype | None) -> dict[str, LazyTensor]:
    """Convert floats to `dtype`, where one is given."""
    return {n: t.to(dtype) if dtype and t.dtype.is_floating_point else t for n, t in tensors.items()}


def dtype_name(tensors: Mapping[str, LazyTensor]) -> str:
    """The widest float dtype among `tensors`, spelled as in torch; a config states it as the dtype of its weights."""
    widest = max((t.dtype for t in tensors.values() if t.dtype.is_floating_point), key=lambda d: d.itemsize)
    return str(widest).removeprefix("torch.")
