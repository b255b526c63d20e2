"""Round after round of episodes until the cycles are spent, with a reading of memory after each."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Final

from bench.stress.episodes import Sizes, episodes
from bench.stress.handles.handle import Handle
from bench.stress.memory import LEAST_ROUNDS, Reading, leaks
from bench.stress.playing import Played, play
from specgate.contract import Budget, Role
from specgate.errors import BackendError

SHOWN: Final = 20
"""Most sentences about what was wrong. After so many, the round is the last."""
SCHEMA: Final = "specgate.stress/v1"
ANCHOR: Final = (1, 2, 3, 4, 5)
"""The prompt that was decoded last whenever memory is read."""


@dataclass(slots=True)
class Stressed:
    """Results of all rounds.

    `episodes`: name → how often it was played. `faults`: name → the steps before each fault that was met.
    `readings`: of memory, one per round. `wrong`: what was not as it must be, a sentence each.
    """

    rounds: int = 0
    cycles: int = 0
    blocks: int = 0
    tokens: int = 0
    accepted: int = 0
    drafts: int = 0
    episodes: dict[str, int] = field(default_factory=dict)
    faults: dict[str, list[int]] = field(default_factory=dict)
    readings: list[Reading] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return not self.wrong

    def add(self, number: int, played: Played) -> None:
        """Count an episode of round `number`."""
        for name in ("cycles", "blocks", "tokens", "accepted", "drafts"):
            setattr(self, name, getattr(self, name) + getattr(played, name))
        self.episodes[played.name] = self.episodes.get(played.name, 0) + 1
        if played.fault_steps is not None:
            self.faults.setdefault(played.name, []).append(played.fault_steps)
        self.wrong += [f"round {number}, {played.name}: {sentence}" for sentence in played.wrong]


def stress(handle: Handle, sizes: Sizes, cycles: int, seed: int, say: Callable[[str], None]) -> Stressed:
    """Rounds until `cycles` speculative steps were run, and as many as it takes to see a leak.

    It ends early with the round in which too much was wrong, or in which the engine failed.
    """
    outcome, vocab = Stressed(), handle.engine.facts().vocab
    while (outcome.cycles < cycles or outcome.rounds < LEAST_ROUNDS) and len(outcome.wrong) < SHOWN:
        number = outcome.rounds + 1
        try:
            for episode in episodes(sizes, vocab, tuple(handle.faults), random.Random(f"{seed}/{number}")):
                outcome.add(number, play(handle, episode, sizes.spec))
            rest(handle, sizes)
        except BackendError as error:
            outcome.wrong.append(f"round {number}, {episode.name}: the engine failed: {error.message}")
            return outcome
        outcome.rounds = number
        outcome.readings.append(handle.reading())
        say(line_of(outcome))
    if len(outcome.wrong) < SHOWN:
        outcome.wrong += [*leaks(outcome.readings), *unmet(handle, outcome)]
    return outcome


def rest(handle: Handle, sizes: Sizes) -> None:
    """Leave the engine as after every other round, whichever episode was the last: what it keeps depends on that."""
    handle.engine.prefill([ANCHOR], draft=True)
    handle.engine.decode(Role(max(sizes.spec)), Budget(new_tokens=sizes.new_tokens), ())


def unmet(handle: Handle, outcome: Stressed) -> list[str]:
    """Faults that never came in the middle of a graph, where the engine has graphs."""
    if handle.graph_steps == 1:
        return []
    steps = handle.graph_steps
    return [
        f"{name}: never met in the middle of a graph of {steps} steps, but after {', '.join(map(str, at))}"
        for name, at in outcome.faults.items()
        if all(n % steps == 0 for n in at)
    ]


def line_of(outcome: Stressed) -> str:
    """Return the progress in one line."""
    last = outcome.readings[-1]
    return (
        f"round {outcome.rounds}: {outcome.cycles:,} cycles, {outcome.blocks:,} decode runs, {outcome.tokens:,} tokens "
        f"as by plain decoding, {len(outcome.wrong)} wrong; tensors {last.tensor_bytes / 1e6:.1f} MB, process "
        f"{last.host_bytes / 1e6:.0f} MB" + (f", GPU {last.device_bytes / 1e9:.2f} GB" if last.device_bytes else "")
    )


def as_data(outcome: Stressed, about: Mapping[str, object]) -> dict[str, object]:
    """The result as stored: schema `specgate.stress/v1`."""
    return {"schema": SCHEMA, "passed": outcome.passed, **about, **asdict(outcome)}
