"""The state that a decode run carries from cycle to cycle, and the records that it leaves."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specgate.backends.eagle3.reference.gpt_oss import ExpertCounter
from specgate.contract import Finish
from specgate.contract.protocols import Decoded
from specgate.contract.samples.counters import speculation_counters

RUNNING = 0
REASONS = {1: Finish.EOS, 2: Finish.STOP, 3: Finish.LENGTH}


@dataclass(slots=True)
class Pending:
    """Rows that the draft must still be extended over: the target's features, and the token one ahead of each row.

    `features` [B, R, n·H] and `tokens` [B, R]. Only the first `count` [B] rows of a slot are valid. Row 0 is at
    position `start` [B].
    """

    features: Tensor
    tokens: Tensor
    count: Tensor
    start: Tensor


@dataclass(slots=True)
class Slots:
    """The requests of a batch.

    length      [B]     committed positions in the target's KV cache
    last_token  [B]     the newest token; the target has not run on it yet
    out         [B, C]  emitted tokens, the prefill token first
    emitted     [B]     how many of them there are
    truncated   [B]     verified tokens that were cut off at an end
    finish      [B]     RUNNING or a key of REASONS
    """

    length: Tensor
    last_token: Tensor
    out: Tensor
    emitted: Tensor
    truncated: Tensor
    finish: Tensor

    @classmethod
    def begin(cls, length: Tensor, first_token: Tensor, capacity: int, rule: StopRule) -> Slots:
        """Slots that hold their prompts and have emitted the prefill token, which may already be their last."""
        out = torch.zeros(len(first_token), capacity, dtype=torch.long, device=first_token.device)
        out[:, 0] = first_token
        zeros = torch.zeros_like(length)
        finish = torch.full_like(length, 3) if rule.limit <= 1 else rule.reason_of(first_token)
        return cls(length.clone(), first_token.clone(), out, zeros + 1, zeros.clone(), finish)

    @property
    def active(self) -> Tensor:
        return self.finish == RUNNING

    def tokens(self) -> tuple[tuple[int, ...], ...]:
        """The tokens that each slot has emitted, the prefill token first."""
        return tuple(tuple(row[:n]) for row, n in zip(self.out.tolist(), self.emitted.tolist(), strict=True))

    def finish_reasons(self) -> tuple[Finish, ...]:
        return tuple(REASONS.get(code, Finish.STEPS) for code in self.finish.tolist())


@dataclass(frozen=True, slots=True)
class StopRule:
    """Rule for the end of a slot: an EOS id, a stop id, or `limit` tokens, the prefill token included.

    `eos` and `stop` are empty where EOS is ignored.
    """

    eos: Tensor
    stop: Tensor
    limit: int

    @classmethod
    def make(cls, eos: Sequence[int], stop: Sequence[int], limit: int, ignore: bool, device: str) -> StopRule:
        def ids(token_ids: Sequence[int]) -> Tensor:
            return torch.tensor([] if ignore else list(token_ids), dtype=torch.long, device=device)

        return cls(ids(eos), ids(stop), limit)

    def reason_of(self, tokens: Tensor) -> Tensor:
        """The finish code of each token, RUNNING for tokens that end nothing."""
        code = torch.where(torch.isin(tokens, self.stop), 2, RUNNING)
        return torch.where(torch.isin(tokens, self.eos), 1, code)


def commit(slots: Slots, tokens: Tensor, accepted: Tensor, rule: StopRule) -> Tensor:
    """Emit `accepted + 1` of the target's `tokens` [B, K + 1] per active slot, fewer at an EOS, stop token or limit.

    Rejected rows stay in the cache; the length alone excludes them. Returns the number of tokens emitted per slot [B].
    """
    rows = torch.arange(tokens.shape[1], device=tokens.device)
    active = slots.active
    verified = torch.where(active, accepted + 1, 0)
    codes = torch.where(rows < verified[:, None], rule.reason_of(tokens), RUNNING)
    ends = codes != RUNNING
    until_stop = torch.where(ends.any(dim=1), ends.int().argmax(dim=1) + 1, verified)
    count = torch.minimum(until_stop, rule.limit - slots.emitted).clamp(min=0) * active

    keep = rows < count[:, None]
    slot, row = keep.nonzero(as_tuple=True)
    slots.out[slot, slots.emitted[slot] + row] = tokens[slot, row]
    slots.emitted += count
    slots.length = slots.length + count
    slots.truncated += verified - count
    last = tokens.gather(1, (count - 1).clamp(min=0)[:, None]).squeeze(1)
    slots.last_token = torch.where(count > 0, last, slots.last_token)

    stopped = codes.gather(1, (count - 1).clamp(min=0)[:, None]).squeeze(1) * (count > 0)
    full = torch.where(slots.emitted >= rule.limit, 3, RUNNING)
    slots.finish = torch.where(active, torch.where(stopped != RUNNING, stopped, full), slots.finish)
    return count


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


def as_accepted(drafts: Tensor, targets: Tensor, accepted: Tensor) -> Tensor:
    """Return a cycle's tokens, [B, K + 1], when the first `accepted` [B] draft tokens count as right.

    These come first, then the target's token that follows them.
    """
    rows = torch.arange(targets.shape[1], device=targets.device)
    padded = torch.nn.functional.pad(drafts, (0, 1)).clamp(min=0)
    return torch.where(rows < accepted[:, None], padded, targets)
