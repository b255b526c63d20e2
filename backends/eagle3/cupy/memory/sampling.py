"""Memory for drawing tokens on the device, and the parts of it that a sampling needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.sampling.launchers import BUCKETS, EDGE, LISTED, Division
from specgate.contract import Sampling

IN_PROMPT: Final = -(1 << 31)
"""The bit of `history` that says that a token is in the prompt, as an int32 has it: `history.cuh`."""


def draws(sampling: Sampling | None) -> bool:
    """Return whether tokens are drawn; at temperature 0 the largest logit wins."""
    return sampling is not None and sampling.temperature > 0


def biases(sampling: Sampling | None) -> bool:
    """Return whether something is added to logits, at temperature 0 too."""
    return sampling is not None and bool(sampling.logit_bias)


def penalises(sampling: Sampling | None) -> bool:
    """Return whether tokens that a text has are penalised, at temperature 0 too."""
    return sampling is not None and sampling.penalises


def rejects(sampling: Sampling | None) -> bool:
    """Return whether drafts are verified by rejection. At temperature 0 both ways compare single tokens, as
    greedily.
    """
    return draws(sampling) and sampling is not None and sampling.method == "rejection"


def weighs(sampling: Sampling, vocab: int) -> bool:
    """Return whether a filter needs the mass or the number of a row's larger logits. Top-k of all columns is no
    filter.
    """
    return draws(sampling) and (0 < sampling.top_k < vocab or sampling.top_p < 1)


def filters(sampling: Sampling, vocab: int) -> bool:
    return weighs(sampling, vocab) or (draws(sampling) and sampling.min_p > 0)


@dataclass(frozen=True, slots=True)
class SamplingBuffers:
    """For S slots and R rows, K + 1 of each slot. What no part of sampling needs has no rows.

    `requests` int64 [S]: who the slots' requests are, 64 bits each. `bias` float32 [V]: what is added to logits.
    Zero between launches: `best` int64 [R] and `finished` int32 [R, with rejection at least 2K · S], a row's race so
    far and how many blocks have run it; `bucket_sums` int64 [R, BUCKETS], a row's columns or masses by logit, and
    `list_sizes` int32 [R], how many of its columns matter to filters. `edges` int64 [R, EDGE]: the bucket in which
    they end; `listed` int64 [R, LISTED]: what matters. `cuts` int64 [R]: the rank of the last column that they keep.
    `history` int32 [S, V]: what the slots' texts have of each token, for penalties.
    For rejection, `draft_logits` float32 [K, S, W]: what the draft tokens of a step were drawn from; `sums` float64
    [2K · S] and `partial` float64 [2K · S, blocks]: of the weights of rows, and of parts of rows.
    """

    requests: Tensor
    bias: Tensor
    best: Tensor
    finished: Tensor
    bucket_sums: Tensor
    edges: Tensor
    listed: Tensor
    list_sizes: Tensor
    cuts: Tensor
    history: Tensor
    draft_logits: Tensor
    sums: Tensor
    partial: Tensor

    @classmethod
    def allocate(
        cls,
        sampling: Sampling,
        vocab: int,
        slots: int,
        rows: int,
        device: torch.device | str,
        *,
        draft_vocab: int = 0,
    ) -> SamplingBuffers:
        """`draft_vocab`: columns of the draft; 0 where there is none, which nothing is rejected of."""

        def of(dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        bias = of(torch.float32, vocab if biases(sampling) else 0)
        for token, added in sampling.logit_bias:
            bias[token] = added
        weighed, filtered = (rows if needs(sampling, vocab) else 0 for needs in (weighs, filters))
        drafted = rows // slots - 1 if rejects(sampling) and draft_vocab else 0
        summed = 2 * drafted * slots
        return cls(
            requests=of(torch.int64, slots),
            bias=bias,
            best=of(torch.int64, rows),
            finished=of(torch.int32, max(rows, summed)),
            bucket_sums=of(torch.int64, weighed, BUCKETS),
            edges=of(torch.int64, weighed, EDGE),
            listed=of(torch.int64, weighed, LISTED),
            list_sizes=of(torch.int32, weighed),
            cuts=of(torch.int64, filtered),
            history=of(torch.int32, slots if penalises(sampling) else 0, vocab),
            draft_logits=of(torch.float32, drafted, slots, draft_vocab),
            sums=of(torch.float64, summed),
            partial=of(torch.float64, summed, Division(vocab).blocks),
        )

    def begin_texts(self, prompts: Sequence[Sequence[int]]) -> None:
        """The first slots have these prompts, and have emitted nothing."""
        if not len(self.history):
            return
        self.history.zero_()
        for text, prompt in zip(self.history, prompts, strict=False):
            text[torch.tensor(prompt, dtype=torch.int64).to(text.device)] = IN_PROMPT

    def forget_outputs(self) -> None:
        """All slots have emitted nothing; their prompts stay."""
        if len(self.history):
            self.history.bitwise_and_(IN_PROMPT)
