"""Log-probabilities of the tokens that a decode run emits."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from specgate.backends.eagle3.reference.sampling.sampler import rows_of
from specgate.sampling.target import checked, log_softmax


class LogProbabilities:
    """Sees what each step is about to commit, as `eagle3.logit_watch.LogitWatch` does, and keeps the model's own
    log-probability of every token, by slot.
    """

    complete = False
    """It sees every step."""

    def __init__(self, slots: int) -> None:
        self.by_slot: list[list[tuple[int, float]]] = [[] for _ in range(slots)]

    def see(self, slot: int, first: int, tokens: Sequence[int], logits: Tensor) -> None:
        """As `loop.Watch.see`."""
        for token, row in zip(tokens, rows_of(logits), strict=False):
            self.by_slot[slot].append((token, float(log_softmax(checked(row))[token])))
