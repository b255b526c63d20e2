"""Engines with a bug that makes them look faster, or right: memory across requests, junk in places, work out of time.

Each is a reference engine with the pair's own draft. `conftest.cheating` runs it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from specgate.backends.eagle3.reference.open import open_engine
from specgate.contract import Budget, Role, Score
from specgate.contract.protocols import Decoded, OpenRequest, Text
from tests.cheats.engines import Honest
from tests.support.engines.plugged import Plugged

# ── junk, alike in every role ─────────────────────────────────────────────────────────────────────────────────────────


class Junk(Honest):
    """Some of its tokens are others than the target's, the same ones in every role."""

    def junk(self, prompt: Sequence[int], index: int) -> bool:
        raise NotImplementedError

    def spoilt(self, texts: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
        vocab, prompts = self.engine.target.geometry.vocab, [p.tolist() for p in self.engine.prompts]
        return tuple(
            tuple((t + 1) % vocab if self.junk(prompts[slot], i) else t for i, t in enumerate(text))
            for slot, text in enumerate(texts)
        )

    def decode(self, role: Role, budget: Budget, stop: Sequence[int]) -> Decoded:
        made = self.engine.decode(role, budget, stop)
        return replace(made, tokens=self.spoilt(made.tokens))

    def extend(self, steps: int) -> Text:
        made = self.engine.extend(steps)
        return Text(self.spoilt(made.tokens), made.finish)


class JunkInTheSecondHalfOfTwoTexts(Junk):
    """Of eight prompts, two have answers whose second halves are junk."""

    def __init__(self, request: OpenRequest) -> None:
        super().__init__(request)
        self.seen: list[tuple[int, ...]] = []

    def prefill(self, prompts: Sequence[Sequence[int]], *, draft: bool) -> int:
        self.seen += [tuple(p) for p in prompts if tuple(p) not in self.seen]
        return super().prefill(prompts, draft=draft)

    def junk(self, prompt: Sequence[int], index: int) -> bool:
        return self.seen.index(tuple(prompt)) % 8 in (2, 5) and index >= 4


# ── text and drafts that are remembered ───────────────────────────────────────────────────────────────────────────────


class Remembers(Honest):
    """It drafts from texts that it knows: what of its answer it knows is accepted whole."""

    def known(self, slot: int) -> Sequence[int]:
        """The text that it knows of the prompt in `slot`, from the prefill token on."""
        raise NotImplementedError

    def decode(self, role: Role, budget: Budget, stop: Sequence[int]) -> Decoded:
        began = time.perf_counter_ns()
        made = self.engine.decode(role, budget, stop)
        if not role.speculative or budget.steps is None:
            return made
        longer = self.engine.decode(Role(0), Budget(steps=(role.k + 1) * budget.steps + 1), ())
        tokens, rows = [], []
        for slot, text in enumerate(longer.tokens):
            walked = [row[slot] for row in made.accepted]
            at, counts = 0, list[int]()
            for step in range(budget.steps):
                knows = text[: at + role.k + 2] == tuple(self.known(slot)[: at + role.k + 2])
                counts.append(role.k if knows else walked[step] if at == sum(walked[:step]) + step else 0)
                at += counts[-1] + 1
            tokens.append(text[: at + 1])
            rows.append(counts)
        accepted = tuple(zip(*rows, strict=True))
        drafted = tuple((role.k,) * len(rows) for _ in accepted)
        step = (time.perf_counter_ns() - began) // budget.steps  # its clock is honest
        made = replace(made, step_ns=(step,) * budget.steps, elapsed_ns=step * budget.steps, phase_ns={}, counters={})
        return replace(made, tokens=tuple(tokens), accepted=accepted, drafted=drafted)


class DecodesInThePrefill(Remembers):
    """The untimed prefill decodes the whole text, which is then "drafted"."""

    def prefill(self, prompts: Sequence[Sequence[int]], *, draft: bool) -> int:
        took = self.engine.prefill(prompts, draft=draft)
        self.texts = self.engine.decode(Role(0), Budget(steps=24), ()).tokens
        return took

    def known(self, slot: int) -> Sequence[int]:
        return self.texts[slot]


class RemembersEarlierRounds(Remembers):
    """It keeps what it has answered to a prompt, and drafts from that in later rounds."""

    def __init__(self, request: OpenRequest) -> None:
        super().__init__(request)
        self.memory: dict[tuple[int, ...], tuple[int, ...]] = {}

    def known(self, slot: int) -> Sequence[int]:
        return self.memory.get(tuple(self.engine.prompts[slot].tolist()), ())

    def decode(self, role: Role, budget: Budget, stop: Sequence[int]) -> Decoded:
        made = super().decode(role, budget, stop)
        if role.speculative:
            for prompt, text in zip(self.engine.prompts, made.tokens, strict=True):
                key = tuple(prompt.tolist())
                self.memory[key] = max(self.memory.get(key, ()), text, key=len)
        return made


# ── time that is stated ───────────────────────────────────────────────────────────────────────────────────────────────

PREFILL_NS: Final = 30_000_000


class InOneGo(Honest):
    """It prefills and decodes in one call, and says truly how long each took. Its prefill takes its time."""

    def prefill(self, prompts: Sequence[Sequence[int]], *, draft: bool) -> int:
        self.engine.prefill(prompts, draft=draft)
        return 0

    def decode(self, role: Role, budget: Budget, stop: Sequence[int]) -> Decoded:
        began = time.perf_counter_ns()
        while time.perf_counter_ns() < began + PREFILL_NS:
            pass
        prefill_ns = time.perf_counter_ns() - began
        made = self.engine.decode(role, budget, stop)
        return self.told(role, replace(made, phase_ns={}), prefill_ns)

    def told(self, role: Role, made: Decoded, prefill_ns: int) -> Decoded:
        return replace(made, prefill_ns=prefill_ns)


class TellsDecodeAsPrefill(InOneGo):
    """Most of what spec roles decode is told as prefill."""

    def told(self, role: Role, made: Decoded, prefill_ns: int) -> Decoded:
        if not role.speculative:
            return replace(made, prefill_ns=prefill_ns)
        step_ns = tuple(max(1, ns // 10) for ns in made.step_ns)
        moved = made.elapsed_ns - sum(step_ns)
        return replace(made, prefill_ns=prefill_ns + moved, step_ns=step_ns, elapsed_ns=sum(step_ns))


# ── second engines that are silenced ──────────────────────────────────────────────────────────────────────────────────


class RunsOutOfMemory:
    """A second engine that fails whenever it is asked. `tests/run` has those whose process is ended or hangs."""

    def __init__(self, request: OpenRequest) -> None:
        self.engine = open_engine(request)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def score(self, prompt: Sequence[int], continuation: Sequence[int], positions: Sequence[int]) -> tuple[Score, ...]:
        raise MemoryError("out of memory")


ENGINES: Final[tuple[type[Any], ...]] = (
    JunkInTheSecondHalfOfTwoTexts,
    *(DecodesInThePrefill, RemembersEarlierRounds),
    *(InOneGo, TellsDecodeAsPrefill),
    RunsOutOfMemory,
)
for _engine in ENGINES:
    globals()[f"PLUGIN_{_engine.__name__}"] = Plugged(_engine, "cheats")
