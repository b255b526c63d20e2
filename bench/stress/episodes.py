"""Episodes of a round of stress. Every round has the same shapes, with other prompts, in another order."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from specgate.errors import UsageError

FILLS: Final = (0.75, 0.9)
"""Shares of the cache's positions that prompts fill, in every slot."""
BLOCK: Final = 64
"""Positions of a cache block of the built-in engine, at whose borders ragged prompts end."""
LOGITS_AT: Final = (1, 2, 5)
"""Tokens whose logits are compared bit for bit: behind the first, so that drafts have been accepted before some."""
Kind = Literal["plain", "ends", "fault"]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes that an engine is opened for, and of the requests to it.

    `slots`, `positions`: requests at a time, and cached positions of each. `spec`: draft lengths.
    `contexts`: prompt lengths that are asked by themselves. `new_tokens`: tokens of a request.
    `singles`: prompts of a round that are answered one after the other.
    """

    slots: int
    positions: int
    spec: tuple[int, ...]
    contexts: tuple[int, ...]
    new_tokens: int
    singles: int = 6

    @property
    def longest_prompt(self) -> int:
        """With it, the last token of a request comes as near to the last position as an engine lets it."""
        longest = max(self.spec)
        return self.positions - max(self.new_tokens, LOGITS_AT[-1] * (longest + 1)) - longest - 2

    def check(self) -> None:
        """Raises UsageError where no engine could hold what would be asked."""
        if self.longest_prompt < 2 * BLOCK:
            raise UsageError(
                f"--positions {self.positions}: {self.new_tokens} new tokens and {max(self.spec)} drafts leave "
                f"{self.longest_prompt} for a prompt",
                hint=f"at least {2 * BLOCK + self.positions - self.longest_prompt}",
            )
        if max(self.contexts) > self.longest_prompt:
            raise UsageError(
                f"--context {max(self.contexts)}: longer than {self.longest_prompt}, which --positions "
                f"{self.positions} have room for beside {self.new_tokens} new tokens",
                hint="more positions, or a shorter context",
            )
        if self.slots < 2:
            raise UsageError(f"--slots {self.slots}: a ragged batch needs two", hint="at least 2")


@dataclass(frozen=True, slots=True)
class Episode:
    """Prompts that are prefilled together, and decoded by every role.

    `kind`: `plain`; `ends`, with stop tokens that end the slots at different places; `fault`, with a fault put into the
    cache, whose name is `fault`, before a decode of spec-`k`.
    """

    name: str
    prompts: tuple[tuple[int, ...], ...]
    new_tokens: int
    kind: Kind = "plain"
    fault: str | None = None
    k: int = 0


def episodes(sizes: Sizes, vocab: int, faults: Sequence[str], dice: random.Random) -> list[Episode]:
    """The episodes of one round, in an order by lot."""

    def prompts(*lengths: int) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(dice.choices(range(vocab), k=length)) for length in lengths)

    n, slots, most = sizes.new_tokens, sizes.slots, sizes.longest_prompt
    plan = [Episode(f"a prompt of {context}", prompts(context), n) for context in sizes.contexts]
    for fill in FILLS:
        length = min(round(fill * sizes.positions), most)
        plan.append(Episode(f"a cache filled to {length / sizes.positions:.2f}", prompts(*[length] * slots), n))
    plan.append(Episode("to the last position", prompts(most), n))
    plan.append(Episode("a ragged batch", prompts(*ragged(slots, most)), n))
    (one,) = prompts(min(3 * BLOCK + 5, most))
    plan.append(Episode("equal prompts", (one,) * slots, n))
    plan.append(Episode("slots that end", prompts(*ragged(slots, most)), n, "ends"))
    for number, length in enumerate(single_lengths(sizes.singles, min(most, 8 * BLOCK))):
        plan.append(Episode(f"back to back, {number + 1}", prompts(length), max(2, n // 2)))
    for fault in faults:
        for k in sizes.spec:
            plan.append(Episode(fault, prompts(before_a_border(k), 5), max(n, 4 * (k + 1)), "fault", fault, k))
    dice.shuffle(plan)
    return plan


def single_lengths(count: int, most: int) -> list[int]:
    """By lot, the same in every round: a library may keep a plan for each length of prompt, which is no leak."""
    dice = random.Random(count)
    return [dice.randint(1, most) for _ in range(count)]


def ragged(slots: int, most: int) -> list[int]:
    """Lengths around the borders of cache blocks, from one token to the longest prompt."""
    around = [1, BLOCK - 1, BLOCK, BLOCK + 1, most, 2 * BLOCK - 3, 2 * BLOCK, 5]
    return [around[slot % len(around)] for slot in range(slots)]


def before_a_border(k: int) -> int:
    """A prompt length from which spec-k needs its next cache block after some steps and not at once.

    Room is left in the block for a step's K + 1 rows and twice as many tokens, so that the need comes in the third step
    after it at the earliest.
    """
    return 2 * BLOCK - 3 * (k + 1)
