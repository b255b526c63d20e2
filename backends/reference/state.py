"""What a decode stretch carries from cycle to cycle, and how a cycle's tokens are committed to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specgate.core import Finish

RUNNING = 0
REASONS = {1: Finish.EOS, 2: Finish.STOP, 3: Finish.LENGTH}


@dataclass(slots=True)
class Pending:
    """Rows that the draft has yet to extend over: real target features and the tokens one ahead of them.

    `features` [B, R, n·H], `tokens` [B, R]; only the first `count` [B] rows of a slot are valid, row 0 at `start` [B].
    """

    features: Tensor
    tokens: Tensor
    count: Tensor
    start: Tensor


@dataclass(slots=True)
class Slots:
    """`length` [B]: committed positions in the target's cache; `root` [B]: the newest token, not yet forwarded.

    `out` [B, C] holds `emitted` [B] tokens per slot, the prefill token first; `finish` [B] is RUNNING or a key of
    REASONS.
    """

    length: Tensor
    root: Tensor
    out: Tensor
    emitted: Tensor
    truncated: Tensor
    finish: Tensor

    @classmethod
    def begin(cls, length: Tensor, first_token: Tensor, capacity: int, rule: StopRule) -> Slots:
        """Slots that hold their prompt and have emitted the prefill token, which may be the last already."""
        out = torch.zeros(len(first_token), capacity, dtype=torch.long, device=first_token.device)
        out[:, 0] = first_token
        zeros = torch.zeros_like(length)
        finish = torch.full_like(length, 3) if rule.limit <= 1 else rule.reason_of(first_token)
        return cls(length.clone(), first_token.clone(), out, zeros + 1, zeros.clone(), finish)

    @property
    def active(self) -> Tensor:
        return self.finish == RUNNING

    def tokens(self) -> tuple[tuple[int, ...], ...]:
        """What each slot has emitted, the prefill token first."""
        return tuple(tuple(row[:n]) for row, n in zip(self.out.tolist(), self.emitted.tolist(), strict=True))

    def finish_reasons(self) -> tuple[str, ...]:
        return tuple(REASONS.get(code, Finish.STEPS).value for code in self.finish.tolist())


@dataclass(frozen=True, slots=True)
class StopRule:
    """When a slot ends: EOS ids, stop ids (both empty where EOS is ignored), and tokens in all, prefill token
    included.
    """

    eos: Tensor
    stop: Tensor
    limit: int

    @classmethod
    def make(cls, eos: Sequence[int], stop: Sequence[int], limit: int, ignore: bool, device: str) -> StopRule:
        def ids(given: Sequence[int]) -> Tensor:
            return torch.tensor([] if ignore else list(given), dtype=torch.long, device=device)

        return cls(ids(eos), ids(stop), limit)

    def reason_of(self, tokens: Tensor) -> Tensor:
        """The finish code of each token, RUNNING where it does not end anything."""
        code = torch.where(torch.isin(tokens, self.stop), 2, RUNNING)
        return torch.where(torch.isin(tokens, self.eos), 1, code)


def commit(slots: Slots, tokens: Tensor, accepted: Tensor, rule: StopRule) -> Tensor:
    """Emit `accepted + 1` of the target's `tokens` [B, K + 1] per active slot, fewer at EOS, stop token or limit.

    The rejected tail is rewound by length alone. Returns the tokens emitted per slot [B].
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
    slots.root = torch.where(count > 0, last, slots.root)

    stopped = codes.gather(1, (count - 1).clamp(min=0)[:, None]).squeeze(1) * (count > 0)
    full = torch.where(slots.emitted >= rule.limit, 3, RUNNING)
    slots.finish = torch.where(active, torch.where(stopped != RUNNING, stopped, full), slots.finish)
    return count
