"""Who proposes the chain: the pair's EAGLE-3 draft (`eagle.py`), or a stand-in whose acceptance is known beforehand.

Greedy speculation emits the target's tokens whatever is proposed. A stand-in that changes them has found a defect
of the verify path; the lengths that it gives frame what any draft can reach.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal, Protocol, get_args

import torch
from torch import Tensor

from specgate.backends.reference.state import Slots

StandIn = Literal["none", "random", "oracle"]
STAND_INS: Final[tuple[StandIn, ...]] = get_args(StandIn)

NOTHING: Final = -1
"""A drafted token that no target token equals."""

Step = Callable[[Tensor, Tensor], Tensor]
"""Run the target on tokens [B, 1] at positions [B, 1]: its greedy tokens [B, 1]."""


class Drafter(Protocol):
    """Proposes drafts for all slots at once. `boundaries` are the target's streams that it wants to see."""

    boundaries: Sequence[int]

    def prefill(self, slot: int, following: Tensor, features: Tensor | None, positions: Tensor) -> None:
        """See prompt rows [1, T] of a slot: captured `features` [1, T, n·H] and the tokens `following` [1, ≤ T]."""

    def prefilled(self, features: Sequence[Tensor | None], first_token: Tensor, length: Tensor) -> None:
        """All prompts are in: each slot's last `features` [1, 1, n·H], the first tokens [B] and prompt lengths [B]."""

    def rewind(self) -> None:
        """Forget everything since the prompts."""

    def chain(self, slots: Slots, k: int) -> Tensor:
        """Drafts [B, k] that may follow the slots' roots."""

    def verified(self, features: Tensor | None, tokens: Tensor, emitted: Tensor, start: Tensor) -> None:
        """The target's `features` [B, k + 1, n·H] of root and drafts, the `tokens` [B, k + 1] one ahead of them, of
        which `emitted` [B] are valid, and the position [B] of the root.
        """


class StandInDrafter:
    """What the stand-ins share: they look at nothing."""

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
    """Proposes nothing that could match, at full verify cost: acceptance length exactly 1."""

    def chain(self, slots: Slots, k: int) -> Tensor:
        return slots.root.new_full((len(slots.root), k), NOTHING)


class RandomDrafter(StandInDrafter):
    """Proposes tokens at random, in every block the same: acceptance length about 1 + 1 / vocabulary."""

    def __init__(self, vocab: int, device: str) -> None:
        self.vocab = vocab
        self.generator = torch.Generator(device)
        self.rewind()

    def rewind(self) -> None:
        self.generator.manual_seed(0)

    def chain(self, slots: Slots, k: int) -> Tensor:
        shape = (len(slots.root), k)
        return torch.randint(self.vocab, shape, generator=self.generator, device=slots.root.device)


class OracleDrafter(StandInDrafter):
    """Asks the target itself, one token at a time: acceptance length K + 1, exactly so where verifying several rows
    gives the bits of verifying one. The rows that it leaves in the target's cache are those that verifying writes
    again.
    """

    def __init__(self, step: Step) -> None:
        self.step = step

    def chain(self, slots: Slots, k: int) -> Tensor:
        token, position, drafts = slots.root[:, None], slots.length[:, None], list[Tensor]()
        for i in range(k):
            token = self.step(token, position + i)
            drafts.append(token)
        return torch.cat(drafts, dim=1)


def stand_in(name: StandIn, vocab: int, device: str, step: Step) -> Drafter:
    match name:
        case "none":
            return NoDrafter()
        case "random":
            return RandomDrafter(vocab, device)
        case "oracle":
            return OracleDrafter(step)
