"""Independent texts and the distribution that tokens come from, for the gate `distribution`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from specgate.backends.eagle3.reference.drafters import Drafter
from specgate.backends.eagle3.reference.sampling.sampler import Sampler, rows_of
from specgate.contract import Budget, Role
from specgate.contract.draws import TokenLaw
from specgate.contract.protocols import Decoded
from specgate.errors import BackendError


class Loop(Protocol):
    """The part of `loop.SpeculativeLoop` that drawing uses."""

    sampler: Sampler | None
    drafter: Drafter | None
    max_batch: int
    last_rows: tuple[Tensor, tuple[Tensor | None, ...]]
    first_token: Tensor
    length: Tensor

    def prefill(self, prompts: Sequence[Sequence[int]], *, draft: bool) -> int: ...

    def decode(self, role: Role, budget: Budget, stop_token_ids: Sequence[int]) -> Decoded: ...

    def _after(self, slot: int, continuation: Sequence[int]) -> Tensor: ...


@torch.inference_mode()
def draw_texts(
    loop: Loop, role: Role, prompt: Sequence[int], tokens: int, first: int, count: int
) -> tuple[tuple[int, ...], ...]:
    """As `protocols.DrawsTexts.draw`: every slot gets the prompt, which is prefilled once."""
    sampler, drafter, slots = sampler_of(loop), loop.drafter if role.speculative else None, loop.max_batch
    loop.prefill([prompt] * slots, draft=role.speculative)
    logits, features = loop.last_rows
    texts = list[tuple[int, ...]]()
    for start in range(first, first + count, slots):
        sampler.begin([tuple(prompt)] * slots, np.arange(start, start + slots, dtype=np.uint64))
        loop.first_token = sampler.first(logits)
        if drafter:
            drafter.prefilled(features, loop.first_token, loop.length)
        texts += loop.decode(role, Budget(new_tokens=tokens), ()).tokens
    return tuple(texts[:count])


@torch.inference_mode()
def show_distribution(loop: Loop, prompt: Sequence[int], continuation: Sequence[int], least: float) -> TokenLaw:
    """As `protocols.ShowsDistribution.distribution`."""
    sampler = sampler_of(loop)
    loop.prefill([prompt], draft=False)
    row = rows_of(loop._after(0, continuation))
    probabilities = sampler.distribution(row, sampler.history(0, continuation, len(row)))
    support = np.flatnonzero((probabilities >= least) & (probabilities > 0))
    return TokenLaw(tuple(continuation), tuple(support.tolist()), tuple(probabilities[support].tolist()))


def sampler_of(loop: Loop) -> Sampler:
    """The loop's sampler. Raises BackendError where it decodes greedily."""
    if loop.sampler is None:
        raise BackendError("the engine was opened to decode greedily: it draws nothing")
    return loop.sampler
