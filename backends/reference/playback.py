"""Accept counts from a tape in the place of measured ones: the speed of another run's acceptance, with wrong tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specgate.core.tape import Tape, sha256_of_ids
from specgate.errors import BackendError


class Playback:
    """Plays a tape. Prompts that were recorded get their own counts; others get the recorded prompt sets in turn,
    always the same ones for the same prompts, so that a block repeats itself.
    """

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.turns: dict[str, int] = {}
        self.playing = 0

    def meet(self, prompts: Sequence[Sequence[int]]) -> None:
        """The prompts of the blocks that follow."""
        name = sha256_of_ids(prompts)
        self.playing = self.tape.index_of(name, self.turns.setdefault(name, len(self.turns)))

    def accepted(self, k: int, cycles: int, batch: int, device: str) -> Tensor:
        """Accept counts [cycles, batch], at once, so that looking them up costs no cycle anything.

        Raises BackendError where the tape has no chain of `k`.
        """
        if k not in self.tape.specs:
            recorded = ", ".join(f"spec-{n}" for n in self.tape.specs)
            raise BackendError(f"spec-{k} asked for, but the tape has {recorded}", hint="record a run with that role")
        rows = [[self.tape.accepted(k, self.playing, slot, cycle) for slot in range(batch)] for cycle in range(cycles)]
        return torch.tensor(rows, device=device)


def as_accepted(drafts: Tensor, targets: Tensor, accepted: Tensor) -> Tensor:
    """What a cycle emits when `accepted` [B] drafts count as right: those, then the target's token after them [B, K
    + 1].
    """
    rows = torch.arange(targets.shape[1], device=targets.device)
    padded = torch.nn.functional.pad(drafts, (0, 1)).clamp(min=0)
    return torch.where(rows < accepted[:, None], padded, targets)
