"""Records of a decode run: time per step and phase, accept counts; and counts from a tape in their place.

The speed is that of another run's acceptance. The tokens are wrong.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from specgate.backends.eagle3.reference.gpt_oss import ExpertCounter
from specgate.backends.eagle3.reference.state import Slots
from specgate.contract.protocols import Decoded
from specgate.contract.samples.counters import speculation_counters
from specgate.contract.tape import Tape, sha256_of_ids
from specgate.errors import BackendError


class Recorder:
    """Uses the host clock. On CUDA, every phase ends with a synchronisation, so that its time is its own.

    `experts`: of each of the target's layers; 0 for a dense one. `counters`: what a loop counts beside acceptance.
    """

    def __init__(self, device: str, k: int = 0, experts: int = 0) -> None:
        self._cuda, self.k = device.startswith("cuda"), k
        self.experts = ExpertCounter(experts) if experts else None
        self._steps: list[int] = []
        self._accepted: list[tuple[int, ...]] = []
        self._drafted: list[tuple[int, ...]] = []
        self._phases: Counter[str] = Counter()
        self.counters: Counter[str] = Counter()
        self._began = self._mark = self._step_mark = self._now()

    def _now(self) -> int:
        if self._cuda:
            torch.cuda.synchronize()
        return time.perf_counter_ns()

    @property
    def steps(self) -> int:
        return len(self._steps)

    @property
    def elapsed_ns(self) -> int:
        return self._mark - self._began

    def phase(self, name: str) -> None:
        """Assign the time since the end of the last phase to phase `name`."""
        now = self._now()
        self._phases[name] += now - self._mark
        self._mark = now

    def step(self, active: Tensor, accepted: Tensor, drafted: Tensor | None = None) -> None:
        """End a step. The slots that were `active` [B] at its beginning accepted `accepted` [B] draft tokens, of
        `drafted` [B] each (None: of K).
        """
        proposed = torch.full_like(accepted, self.k) if drafted is None else drafted
        self._accepted.append(tuple(torch.where(active, accepted, -1).tolist()))
        self._drafted.append(tuple(torch.where(active, proposed, -1).tolist()))
        self.phase("commit")
        self._steps.append(self._mark - self._step_mark)
        self._step_mark = self._mark

    def decoded(self, slots: Slots) -> Decoded:
        finish = slots.finish_reasons()
        counted = speculation_counters(self._accepted, finish, self._drafted) if self.k else {}
        return Decoded(
            elapsed_ns=self.elapsed_ns,
            step_ns=tuple(self._steps),
            tokens=slots.tokens(),
            accepted=tuple(self._accepted),
            drafted=tuple(self._drafted),
            truncated=tuple(slots.truncated.tolist()),
            finish=finish,
            counters={**counted, **self.counters},
            phase_ns=dict(self._phases),
            experts=self.experts.counts() if self.experts else None,
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
