"""Option `tape`: cycles accept what another run accepted. The speed is that of its acceptance; the tokens are wrong."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from specgate.contract.protocols import OpenRequest
from specgate.contract.tape import OPTION, Tape, sha256_of_ids
from specgate.errors import BackendError

TAPE: Final = OPTION
WARNING: Final = (
    "acceptance is forced by a tape: the tokens of spec blocks are wrong by design, only speed means anything"
)


class Playback:
    """Plays a tape.

    Prompts that were recorded get their own counts. Other prompts get the recorded prompt sets in turn. The same
    prompts always get the same set, so that a block can be repeated.
    """

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.turns: dict[str, int] = {}
        self.playing = 0

    @classmethod
    def of(cls, request: OpenRequest) -> Playback | None:
        """Return the playback of the tape that the options name; None without one.

        Raises UsageError for a file that is no tape.
        """
        if TAPE not in request.options:
            return None
        return cls(Tape.load(Path(request.options[TAPE]).expanduser()))

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


def details_of(tape: Tape | None) -> dict[str, str]:
    """The line about `tape` for the facts of an engine that replays it."""
    return {} if tape is None else {"tape of": tape.origin.get("run", "a run that it does not name")}
