"""Replay accept counts from a tape in place of measured ones.

The speed is that of another run's acceptance. The tokens are wrong.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specgate.contract.tape import Tape, sha256_of_ids
from specgate.errors import BackendError


class Playback:
    """Plays a tape.

    Prompts that were recorded get their own counts. Other prompts get the recorded prompt sets in turn. The same
    prompts always get the same set, so that a block can be repeated.
    """

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.turns: dict[str, int] = {}
        self.playing = 0

    def meet(self, prompts: Sequence[Sequence[int]]) -> None:
        """Choose the counts for these prompts, which the following blocks decode."""
        name = sha256_of_ids(prompts)
        self.playing = self.tape.index_of(name, self.turns.setdefault(name, len(self.turns)))

    def accepted(self, k: int, cycles: int, batch: int, device: str) -> Tensor:
        """Accept counts [cycles, batch], all at once so that looking them up takes no time in the cycles.

        Raises BackendError where the tape has no chain of length `k`.
        """
        if k not in self.tape.specs:
            recorded = ", ".join(f"spec-{n}" for n in self.tape.specs)
            raise BackendError(f"spec-{k} asked for, but the tape has {recorded}", hint="record a run with that role")
        rows = [[self.tape.accepted(k, self.playing, slot, cycle) for slot in range(batch)] for cycle in range(cycles)]
        return torch.tensor(rows, device=device)


def as_accepted(drafts: Tensor, targets: Tensor, accepted: Tensor) -> Tensor:
    """Return a cycle's tokens, [B, K + 1], when the first `accepted` [B] draft tokens count as right.

    These come first, then the target's token that follows them.
    """
    rows = torch.arange(targets.shape[1], device=targets.device)
    padded = torch.nn.functional.pad(drafts, (0, 1)).clamp(min=0)
    return torch.where(rows < accepted[:, None], padded, targets)
