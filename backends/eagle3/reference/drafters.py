"""Drafters: the pair's EAGLE-3 draft (`draft.py`), or a stand-in whose acceptance is known beforehand.

Greedy speculation emits the target's tokens whatever is proposed. If the tokens change with a stand-in, the verify pass
has a defect. The acceptance lengths of the stand-ins bound those of any draft.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal, Protocol, get_args

import torch
from torch import Tensor

from specgate.backends.eagle3.reference.state import Slots

StandIn = Literal["none", "random", "oracle"]
STAND_INS: Final[tuple[StandIn, ...]] = get_args(StandIn)

NOTHING: Final = -1
"""A draft token that no target token equals."""

Step = Callable[[Tensor, Tensor], Tensor]
"""Run the target on tokens [B, 1] at positions [B, 1]; returns its greedy tokens [B, 1]."""


class Drafter(Protocol):
    """Proposes draft tokens for all slots at once.

    `boundaries` are the auxiliary hidden-state layers of the target whose states it needs.
    """

    boundaries: Sequence[int]

    def prefill(self, slot: int, following: Tensor, features: Tensor | None, positions: Tensor) -> None:
        """Take in rows of a slot's prompt: `features` [1, T, n·H], and the tokens that follow each row [1, ≤ T]."""

    def prefilled(self, features: Sequence[Tensor | None], first_token: Tensor, length: Tensor) -> None:
        """All prompts are in.

        Given are each slot's last `features` [1, 1, n·H], the first generated tokens [B] and the prompts' lengths [B].
        """

    def rewind(self) -> None:
        """Forget everything after the prompts."""

    def chain(self, slots: Slots, k: int) -> Tensor:
        """Propose draft tokens [B, k] to follow the slots' last tokens."""

    def verified(self, features: Tensor | None, tokens: Tensor, emitted: Tensor, start: Tensor) -> None:
        """Take in the result of a verify pass over the last token and the draft tokens.

        `features` [B, k + 1, n·H] are the target's. `tokens` [B, k + 1] follow each row, and the first `emitted` [B] of
        them are valid. `start` [B] is the position of the last token.
        """


class StandInDrafter:
    """Base of the stand-ins: they need no features."""

    boundaries: Sequence[int] = ()

    def prefill(self, slot: int, following: Tensor, features: Tensor | None, positions: Tensor) -> None:
        """Nothing to see."""

    def prefilled(self, features: Sequence[Tensor | None], first_token: Tensor, length: Tensor) -> None:
        """Nothing to see."""

    def rewind(self) -> None:
        """Nothing to forget."""

    def verified(self, features: Tensor | None, tokens: Tensor, emitted: Tensor, start: Tensor) -> None:
        """Nothing to learn."""


class NoDrafter(StandInDrafter):
    """Proposes tokens that never match, at the full cost of verifying: acceptance length exactly 1."""

    def chain(self, slots: Slots, k: int) -> Tensor:
        return slots.last_token.new_full((len(slots.last_token), k), NOTHING)


class RandomDrafter(StandInDrafter):
    """Proposes random tokens, the same ones in every block: acceptance length about 1 + 1 / vocabulary."""

    def __init__(self, vocab: int, device: str) -> None:
        self.vocab = vocab
        self.generator = torch.Generator(device)
        self.rewind()

    def rewind(self) -> None:
        self.generator.manual_seed(0)

    def chain(self, slots: Slots, k: int) -> Tensor:
        shape = (len(slots.last_token), k)
        return torch.randint(self.vocab, shape, generator=self.generator, device=slots.last_token.device)


class OracleDrafter(StandInDrafter):
    """Asks the target itself, one token at a time: acceptance length K + 1.

    It is exactly K + 1 where verifying several rows gives the same bits as verifying one. The verify pass overwrites
    the rows that this drafter leaves in the target's KV cache.
    """

    def __init__(self, step: Step) -> None:
        self.step = step

    def chain(self, slots: Slots, k: int) -> Tensor:
        token, position, drafts = slots.last_token[:, None], slots.length[:, None], list[Tensor]()
        for i in range(k):
            token = self.step(token, position + i)
            drafts.append(token)
        return torch.cat(drafts, dim=1)


def stand_in(name: StandIn, vocab: int, device: str, step: Step) -> Drafter:
    """The stand-in with that name."""
    match name:
        case "none":
            return NoDrafter()
        case "random":
            return RandomDrafter(vocab, device)
        case "oracle":
            return OracleDrafter(step)
