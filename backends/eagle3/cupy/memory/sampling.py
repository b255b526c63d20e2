"""Memory for drawing tokens on the device, and the parts of it that a sampling needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.arrays import Arrays
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
    """Return whether drafts are verified by rejection. At temperature 0 both methods compare single tokens."""
    return draws(sampling) and sampling is not None and sampling.method == "rejection"


def weighs(sampling: Sampling, vocab: int) -> bool:
    """Return whether a filter needs the mass or number of a row's larger logits. Top-k of all is no filter."""
    return draws(sampling) and (0 < sampling.top_k < vocab or sampling.top_p < 1)


def filters(sampling: Sampling, vocab: int) -> bool:
    return weighs(sampling, vocab) or (draws(sampling) and sampling.min_p > 0)


@dataclass(frozen=True, slots=True)
class SamplingBuffers(Arrays):
    """For S slots and R rows, K + 1 of each slot. What no part of sampling needs has no rows.

    `requests`: who the slots' requests are, 64 bits each. `bias`: what is added to logits. Zero between launches:
    `best` and `finished`, a row's race so far and how many blocks have run it; `bucket_sums`, a row's columns or masses
    by logit, and `list_sizes`, how many of its columns matter to filters. `edges`: the bucket in which they end;
    `listed`: what matters. `cuts`: the rank of the last column that they keep. `history`: what the slots' texts have of
    each token, for penalties. For rejection, `draft_logits`: what the draft tokens of a step were drawn from; `sums`
    and `partial`: of the weights of rows, and of parts of rows.
    """

    requests: Annotated[Tensor, "int64 [S]"]
    bias: Annotated[Tensor, "float32 [BIASED]"]
    best: Annotated[Tensor, "int64 [R]"]
    finished: Annotated[Tensor, "int32 [RACES]"]
    bucket_sums: Annotated[Tensor, "int64 [WEIGHED, BUCKETS]"]
    edges: Annotated[Tensor, "int64 [WEIGHED, EDGE]"]
    listed: Annotated[Tensor, "int64 [WEIGHED, LISTED]"]
    list_sizes: Annotated[Tensor, "int32 [WEIGHED]"]
    cuts: Annotated[Tensor, "int64 [FILTERED]"]
    history: Annotated[Tensor, "int32 [PENALISED, V]"]
    draft_logits: Annotated[Tensor, "float32 [K, S, DRAFT_V]"]
    sums: Annotated[Tensor, "float64 [2 * K * S]"]
    partial: Annotated[Tensor, "float64 [2 * K * S, PARTS]"]

    @classmethod
    def allocate(
        cls, sampling: Sampling, vocab: int, slots: int, rows: int, device: torch.device | str, *, draft_vocab: int = 0
    ) -> SamplingBuffers:
        """`draft_vocab`: columns of the draft; 0 where there is none, which nothing is rejected of."""
        weighed, filtered = (rows if needs(sampling, vocab) else 0 for needs in (weighs, filters))
        drafted = rows // slots - 1 if rejects(sampling) and draft_vocab else 0
        biased, penalised = vocab if biases(sampling) else 0, slots if penalises(sampling) else 0
        of = {"S": slots, "R": rows, "K": drafted, "V": vocab, "DRAFT_V": draft_vocab, "PARTS": Division(vocab).blocks}
        of |= {"BIASED": biased, "PENALISED": penalised, "WEIGHED": weighed, "FILTERED": filtered}
        of |= {"BUCKETS": BUCKETS, "EDGE": EDGE, "LISTED": LISTED, "RACES": max(rows, 2 * drafted * slots)}
        made = cls.zeros(device, **of)
        for token, added in sampling.logit_bias:
            made.bias[token] = added
        return made

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
