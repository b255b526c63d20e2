"""Dishonest engines over the reference engine. A run loads them as it loads any plug-in: see `conftest.cheating`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from specgate.backends.eagle3.reference.engine import ReferenceEngine
from specgate.backends.eagle3.reference.open import open_engine
from specgate.contract import BASELINE, Budget, Finish, Role
from specgate.contract.protocols import Decoded, OpenRequest, Text
from tests.support.engines.plugged import Plugged

WAITS = 20
"""A sleeping baseline sleeps for so many times its decode run: tests that share a machine make single cycles several
times as long.
"""


class Honest:
    """Base of the cheats below: it hands every call on to a reference engine."""

    def __init__(self, request: OpenRequest) -> None:
        self.request = request
        self.engine: ReferenceEngine = open_engine(request)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def facts(self) -> Any:
        return replace(self.engine.facts(), backend="cheat", acceptance=None, warnings=())

    def prefill(self, prompts: Sequence[Sequence[int]], *, draft: bool) -> int:
        return self.engine.prefill(prompts, draft=draft)

    def decode(self, role: Role, budget: Budget, stop: Sequence[int]) -> Decoded:
        return self.engine.decode(role, budget, stop)

    def top2(self, slot: int, continuation: Sequence[int]) -> tuple[float, float] | None:
        return self.engine.top2(slot, continuation)

    def close(self) -> None:
        self.engine.close()


class NoiseBehindTheComparedTokens(Honest):
    """Right as far as the timed baseline goes, then noise, all of it "accepted"."""

    def decode(self, role: Role, budget: Budget, stop: Sequence[int]) -> Decoded:
        made = self.engine.decode(role, budget, stop)
        if not role.speculative or budget.steps is None:
            return made
        compared, vocab = budget.steps + 1, self.engine.target.geometry.vocab
        noisy = tuple(
            tuple(t if i < compared else (t + 1) % vocab for i, t in enumerate(tokens)) for tokens in made.tokens
        )
        return replace(made, tokens=noisy)


class BaselineThatDoesNotGoOn(NoiseBehindTheComparedTokens):
    """As before; and where the baseline is asked for the rest of the text, it stops early."""

    def decode(self, role: Role, budget: Budget, stop: Sequence[int]) -> Decoded:
        if budget.steps is not None and budget.steps > 6 and not role.speculative:
            made = self.engine.decode(role, Budget(steps=6), stop)
            return made
        return super().decode(role, budget, stop)

    def extend(self, steps: int) -> Text:
        made = self.engine.decode(BASELINE, Budget(steps=6), ())
        return Text(made.tokens, made.finish)


class NoiseBehindANearTie(Honest):
    """One wrong token that it calls a near tie, and noise behind it, which no comparison reaches."""

    def decode(self, role: Role, budget: Budget, stop: Sequence[int]) -> Decoded:
        made = self.engine.decode(role, budget, stop)
        if not role.speculative:
            return made
        vocab = self.engine.target.geometry.vocab
        noisy = tuple(tuple(t if i < 2 else (t + 1) % vocab for i, t in enumerate(row)) for row in made.tokens)
        return replace(made, tokens=noisy)

    def top2(self, slot: int, continuation: Sequence[int]) -> tuple[float, float] | None:
        return 1.0, 1.0 - 1e-5


class NegativeMargins(NoiseBehindANearTie):
    """Wrong tokens with a margin below zero, which is below every policy's."""

    def top2(self, slot: int, continuation: Sequence[int]) -> tuple[float, float] | None:
        return 1.0, 2.0


class NoModel(Honest):
    """It never decodes: a formula makes the tokens, the same in every role."""

    def token(self, slot: int, index: int) -> int:
        prompt = self.engine.prompts[slot]
        return int(int(prompt.sum()) * 31 + index * 17 + slot) % self.engine.target.geometry.vocab

    def decode(self, role: Role, budget: Budget, stop: Sequence[int]) -> Decoded:
        made = self.engine.decode(role, budget, stop)
        invented = tuple(
            tuple(self.token(slot, i) for i in range(len(tokens))) for slot, tokens in enumerate(made.tokens)
        )
        return replace(made, tokens=invented)

    def extend(self, steps: int) -> Text:
        text = self.engine.extend(steps)
        made = tuple(tuple(self.token(slot, i) for i in range(len(t))) for slot, t in enumerate(text.tokens))
        return Text(made, text.finish)


class OtherWeights(Honest):
    """A target that is not the pair's: half the MLP of one layer is gone, in every role alike."""

    def __init__(self, request: OpenRequest) -> None:
        super().__init__(request)
        down = self.engine.tw.layers[-1].down
        with torch.inference_mode():
            down[:, : down.shape[1] // 2] = 0


class OtherLogits(Honest):
    """The same tokens in every role from logits that differ in their last bits, as a batch-dependent kernel has it."""

    def logits(self, role: Role, positions: Sequence[int]) -> tuple[tuple[tuple[int, str], ...], ...]:
        shown = self.engine.logits(role, positions)
        if not role.speculative:
            return shown
        return tuple(tuple((token, digest[::-1]) for token, digest in slot) for slot in shown)


class ScriptedEnd(Honest):
    """It says that a baseline which was cut short ended by itself, so that nothing is left to compare."""

    def decode(self, role: Role, budget: Budget, stop: Sequence[int]) -> Decoded:
        made = self.engine.decode(role, budget, stop)
        if role.speculative:
            return made
        return replace(made, finish=(Finish.EOS,) * len(made.finish))


class AnswersFromMemory(Honest):
    """Spec roles answer with a text that it decoded before, in the time that this takes, every draft "accepted"."""

    def __init__(self, request: OpenRequest) -> None:
        super().__init__(request)
        self.known: dict[tuple[Role, Budget], Decoded] = {}

    def prefill(self, prompts: Sequence[Sequence[int]], *, draft: bool) -> int:
        took = self.engine.prefill(prompts, draft=draft)
        self.known = {}
        for k in (2, 3) if draft else ():  # nobody asks how long a prefill takes in a micro run
            self.known[Role(k), Budget(steps=6)] = self.engine.decode(Role(k), Budget(steps=6), ())
        return took

    def decode(self, role: Role, budget: Budget, stop: Sequence[int]) -> Decoded:
        began = time.perf_counter_ns()
        if (known := self.known.get((role, budget))) is None:
            return self.engine.decode(role, budget, stop)
        took = time.perf_counter_ns() - began
        step = took // 6
        return replace(known, elapsed_ns=6 * step, step_ns=(step,) * 6, phase_ns={})


class SleepsInTheBaseline(Honest):
    """Its baseline waits many times as long as it decodes. The clocks agree; it is really that slow."""

    def decode(self, role: Role, budget: Budget, stop: Sequence[int]) -> Decoded:
        made = self.engine.decode(role, budget, stop)
        if role.speculative:
            return made
        # A busy wait in every step, as the engine's own clock and the harness's both see it: what passed, not what was
        # meant to pass, since a busy machine lets it wait longer.
        began = time.perf_counter_ns()
        while time.perf_counter_ns() < began + WAITS * made.elapsed_ns:
            pass
        slower = 1 + (time.perf_counter_ns() - began) / made.elapsed_ns
        step_ns = tuple(round(slower * ns) for ns in made.step_ns)
        phase_ns = {name: round(slower * ns) for name, ns in made.phase_ns.items()}
        return replace(made, elapsed_ns=sum(step_ns), step_ns=step_ns, phase_ns=phase_ns)


ENGINES: tuple[type[Honest], ...] = (
    Honest,
    NoiseBehindTheComparedTokens,
    BaselineThatDoesNotGoOn,
    NoiseBehindANearTie,
    NegativeMargins,
    NoModel,
    OtherWeights,
    OtherLogits,
    ScriptedEnd,
    AnswersFromMemory,
    SleepsInTheBaseline,
)
for _engine in ENGINES:
    globals()[f"PLUGIN_{_engine.__name__}"] = Plugged(_engine, "cheats")
