"""The target's own text: greedy continuations of corpus chunks, which is what a draft meets when it is used."""

from __future__ import annotations

import torch
from torch import Tensor

from specgate.analysis.repetition import repeated_ngram_share
from specgate.backends.reference.target import RopeTable
from specgate.pair_tools.train.data import Corpora
from specgate.pair_tools.train.recipe import Strand
from specgate.pair_tools.train.target import FrozenTarget

TOKENS_AT_ONCE = {"cpu": 16_384, "cuda": 1_048_576}
"""Prompt and continuation tokens whose keys and values are held at a time."""


def own_sequences(
    target: FrozenTarget, corpora: Corpora, strand: Strand, rows: RopeTable, most_repeated: float, seed: int
) -> Tensor:
    """Sequences [M, strand.length], int32: `strand.sequences` drawn, less those whose continuation mostly loops."""
    generator = torch.Generator().manual_seed(seed)
    device = corpora.streams[0].device
    at_once = max(1, TOKENS_AT_ONCE[device.type] // strand.length)
    kept = [torch.empty(0, strand.length, dtype=torch.int32, device=device)]
    for start in range(0, strand.sequences, at_once):
        prompts = corpora.chunks(min(at_once, strand.sequences - start), strand.prompt, generator)
        text = target.continue_greedily(prompts, strand.own_tokens, rows)
        varied = repeated_share(text[:, strand.prompt :]) <= most_repeated
        kept.append(text[varied].int())
    return torch.cat(kept)


def repeated_share(tokens: Tensor) -> Tensor:
    """Share of the 8-grams of each row of `tokens` [B, T] that occurred earlier in that row, float [B]."""
    return torch.tensor([repeated_ngram_share(row) for row in tokens.tolist()], device=tokens.device)
