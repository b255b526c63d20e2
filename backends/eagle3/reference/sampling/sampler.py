"""Draws tokens from the target's logits, and verifies drafts, with the random numbers of each request.

The arithmetic is `specgate.sampling`, in float64 on the host. Here it meets the loop's tensors and slots.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specgate.backends.eagle3.reference.state import Slots
from specgate.contract import Sampling
from specgate.errors import BackendError
from specgate.sampling.coupling import sample, scores, verify_coupled
from specgate.sampling.history import History
from specgate.sampling.keys import Floats, Keys, requests_of
from specgate.sampling.rejection import verify_by_rejection
from specgate.sampling.target import target_distribution


class Sampler:
    """Draws as `asked` says. `begin` comes before any draw of new prompts."""

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling
        self.prompts: list[tuple[int, ...]] = []
        self.requests: NDArray[np.uint64] = np.empty(0, np.uint64)

    def begin(self, prompts: Sequence[Sequence[int]], requests: NDArray[np.uint64] | None = None) -> None:
        """These are the prompts of the slots. `requests` uint64 [B]: who they are, by default known by their text."""
        self.prompts = [tuple(map(int, prompt)) for prompt in prompts]
        self.requests = requests_of(self.prompts) if requests is None else requests

    def keys(self, positions: Sequence[int], slots: Sequence[int]) -> Keys:
        """Keys of `slots`, whose next tokens are at these positions of their texts."""
        return Keys(self.sampling.seed, self.requests[list(slots)], np.array(positions, np.int64))

    def first(self, logits: Tensor) -> Tensor:
        """The tokens [B] that follow the prompts, from the logits [B, V] of their last rows."""
        rows = rows_of(logits)
        slots = range(len(rows))
        target = np.stack([self.distribution(rows[s], self.history(s, (), rows.shape[-1])) for s in slots])
        tokens = sample(target, self.keys([len(p) for p in self.prompts], slots))
        return torch.from_numpy(tokens).to(logits.device)

    def verify(self, logits: Tensor, drafts: Tensor, slots: Slots, proposed: Floats | None) -> tuple[Tensor, Tensor]:
        """(tokens [B, K + 1], accepted [B]) of `drafts` [B, K] by the target's logits [B, K + 1, V].

        `proposed` [B, K, V]: the distributions that the drafts were drawn from; None where they were not drawn. Slots
        that have finished get tokens without a meaning.
        """
        batch, k = drafts.shape
        tokens, accepted = np.zeros((batch, k + 1), np.int64), np.zeros(batch, np.int64)
        if at := slots.active.nonzero().flatten().tolist():
            rows, active_drafts = rows_of(logits[at]), drafts[at].cpu().numpy()
            target = np.stack([self.row_distributions(rows[i], s, slots, active_drafts[i]) for i, s in enumerate(at)])
            keys = self.keys([int(slots.length[s]) + 1 for s in at], at)
            if self.sampling.method == "coupled":
                result = verify_coupled(target, active_drafts, keys)
            else:
                draft = point_masses(active_drafts, rows.shape[-1]) if proposed is None else proposed[at]
                result = verify_by_rejection(target, draft, active_drafts, keys)
            tokens[at], accepted[at] = result.tokens, result.accepted
        return torch.from_numpy(tokens).to(drafts.device), torch.from_numpy(accepted).to(drafts.device)

    def row_distributions(self, rows: Floats, slot: int, slots: Slots, drafts: NDArray[np.int64]) -> Floats:
        """The target's distribution [K + 1, V] after the slot's text and each of its drafts."""
        output = slots.out[slot, : int(slots.emitted[slot])].tolist() if self.sampling.penalises else ()
        before = self.history(slot, output, rows.shape[-1])
        histories = [None] * len(rows) if before is None else list(before.rows(drafts.tolist()))
        return np.stack([self.distribution(row, h) for row, h in zip(rows, histories, strict=True)])

    def distribution(self, row: Floats, history: History | None) -> Floats:
        """The target's distribution [V] from a row of logits [V]."""
        return target_distribution(row, self.sampling, history)

    def history(self, slot: int, output: Sequence[int], vocabulary: int) -> History | None:
        """Return the tokens that penalties count in the slot's text; None without penalties."""
        return History.of(self.prompts[slot], output, vocabulary) if self.sampling.penalises else None

    def drawn_scores(self, logits: Tensor, slot: int, output: Sequence[int]) -> Tensor:
        """Scores [V] whose largest is the token drawn after the slot's prompt and `output`, from the logits [V] there.

        They are those of `coupling.scores`. At temperature 0 they are the logits.
        """
        if self.sampling.temperature == 0:
            return logits
        row = rows_of(logits)
        target = self.distribution(row, self.history(slot, output, len(row)))
        keys = self.keys([len(self.prompts[slot]) + len(output)], [slot])
        return torch.from_numpy(scores(target[None], keys)[0])


def rows_of(logits: Tensor) -> Floats:
    """Logits as float64 on the host; exact."""
    rows: Floats = logits.to("cpu", torch.float64).numpy()
    return rows


def point_masses(drafts: NDArray[np.int64], vocabulary: int) -> Floats:
    """The distributions [B, K, V] of drafts that were not drawn: each has all of it."""
    if (drafts < 0).any():
        raise BackendError("a draft that is no token cannot be verified by rejection", hint="sampling.method: coupled")
    masses = np.zeros((*drafts.shape, vocabulary))
    np.put_along_axis(masses, drafts[..., None], 1.0, axis=-1)
    return masses
