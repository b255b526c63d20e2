"""Records of a decode run: time per step and phase, accept counts per step and slot."""

from __future__ import annotations

import time
from collections import Counter

import torch
from torch import Tensor

from specgate.backends.eagle3.reference.gpt_oss import ExpertCounter
from specgate.backends.eagle3.reference.state import Slots
from specgate.contract.protocols import Decoded
from specgate.contract.samples.counters import speculation_counters


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
