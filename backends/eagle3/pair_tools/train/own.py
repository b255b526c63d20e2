"""The target's own text: greedy continuations of corpus chunks. In use, a draft meets such text."""

from __future__ import annotations

import torch
from torch import Tensor

from specgate.analysis.tokens.repetition import repeated_ngram_share
from specgate.backends.eagle3.pair_tools.train.data import Corpora
from specgate.backends.eagle3.pair_tools.train.recipe import Strand
from specgate.backends.eagle3.pair_tools.train.target import FrozenTarget
from specgate.backends.eagle3.reference.target import RopeTable

TOKENS_AT_ONCE = {"cpu": 16_384, "cuda": 1_048_576}
"""Tokens of prompts and continuations whose KV cache is held at a time, by device type."""


def own_sequences(
    target: FrozenTarget, corpora: Corpora, strand: Strand, rows: RopeTable, most_repeated: float, seed: int
) -> Tensor:
    """Sequences, int32 [M, strand.length], each a prompt and the target's continuation.

    `strand.sequences` are drawn. Those whose continuation repeats more than `most_repeated` of its 8-grams are dropped.
    """
    generator = torch.Generator().manual_seed(seed)
    device = corpora.streams[0].device
    at_once = max(1, TOKENS_AT_ONCE[device.type] // strand.length)
    sequences = [torch.empty(0, strand.length, dtype=torch.int32, device=device)]
    for start in range(0, strand.sequences, at_once):
        prompts = corpora.chunks(min(at_once, strand.sequences - start), strand.prompt, generator)
        text = target.continue_greedily(prompts, strand.own_tokens, rows)
        varied = repeated_share(text[:, strand.prompt :]) <= most_repeated
        sequences.append(text[varied].int())
    return torch.cat(sequences)


def repeated_share(tokens: Tensor) -> Tensor:
    """Share of the 8-grams in each row of `tokens` [B, T] that occurred earlier in the same row, float [B]."""
    return torch.tensor([repeated_ngram_share(row) for row in tokens.tolist()], device=tokens.device)
