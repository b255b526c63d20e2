"""Engines whose records lie, each in one way, over the scripted engine. They come in by entry point, as plug-ins do.

The scripted engine is honest: its calls last as long as it says. What a liar changes is what it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint
from types import SimpleNamespace
from typing import Any, Final

import pytest

from specgate import plugins
from specgate.backends.fake.engine import BACKEND, KERNEL
from specgate.contract import Budget, EngineFacts, Role
from specgate.contract.protocols import Activity, Availability, Decoded, Engine, OpenRequest

Lie = Callable[[Role, Decoded], Decoded]


def times(factor: float, *, speculative: bool) -> Lie:
    """The engine's clock runs `factor` times as fast in one of the roles."""

    def lie(role: Role, d: Decoded) -> Decoded:
        if role.speculative is not speculative:
            return d
        steps = tuple(round(ns * factor) for ns in d.step_ns)
        return replace(d, step_ns=steps, elapsed_ns=sum(steps), phase_ns={})

    return lie


def steps_halved(role: Role, d: Decoded) -> Decoded:
    """Step times that do not add up to the run."""
    return replace(d, step_ns=tuple(ns // 2 for ns in d.step_ns)) if role.speculative else d


def all_truncated(role: Role, d: Decoded) -> Decoded:
    """Every draft counts as accepted; what was not emitted counts as truncated."""
    if not role.speculative:
        return d
    accepted = tuple(tuple(role.k for _ in row) for row in d.accepted)
    verified = len(accepted) * (role.k + 1)
    return replace(d, accepted=accepted, truncated=tuple(verified - len(t) + 1 for t in d.tokens), counters={})


def misses_hidden(role: Role, d: Decoded) -> Decoded:
    """Steps in which nothing was accepted count as steps that did not draft."""
    if not role.speculative:
        return d
    drafted = tuple(tuple(role.k if a else 0 for a in row) for row in d.accepted)
    return replace(d, drafted=drafted, counters={})


def two_steps_as_one(role: Role, d: Decoded) -> Decoded:
    """Two steps with a and b accepted drafts are told as one with a + 1 + b."""
    if not role.speculative:
        return d

    def merged(rows: Sequence[Any]) -> list[tuple[Any, Any]]:
        return list(zip(rows[::2], rows[1::2], strict=True))

    accepted = tuple(tuple(a + 1 + b for a, b in zip(*pair, strict=True)) for pair in merged(d.accepted))
    step_ns = tuple(map(sum, merged(d.step_ns)))
    return replace(d, accepted=accepted, drafted=d.drafted[::2], step_ns=step_ns, counters={})


def wrong_from(index: int, token: int | None = None) -> Lie:
    """Spec roles emit other tokens from `index` on: `token`, or the ones after the right ones."""

    def lie(role: Role, d: Decoded) -> Decoded:
        if not role.speculative:
            return d
        tokens = (tuple(2 + t % 300 if token is None else token for t in row[index:]) for row in d.tokens)
        return replace(d, tokens=tuple((*row[:index], *rest) for row, rest in zip(d.tokens, tokens, strict=True)))

    return lie


def honest(role: Role, d: Decoded) -> Decoded:
    return d


@dataclass(frozen=True)
class LyingBackend:
    """The scripted back end with a lie."""

    name: str
    lie: Lie = honest
    description: str = "lies"

    def available(self) -> Availability:
        return Availability(True, "needs nothing", rank=-1)

    def open(self, request: OpenRequest) -> Engine:
        return LyingEngine(self, BACKEND.open(request))


class LyingEngine:
    """An engine without a word of being scripted. As a scripted one, it brings its own trace, in which all is well."""

    def __init__(self, liar: LyingBackend, inner: Engine) -> None:
        self.liar, self.inner = liar, inner

    def facts(self) -> EngineFacts:
        return replace(self.inner.facts(), backend=self.liar.name, acceptance=None, warnings=(), kernels=(KERNEL,))

    def prefill(self, prompts: Sequence[Sequence[int]], *, draft: bool) -> int:
        return self.inner.prefill(prompts, draft=draft)

    def decode(self, role: Role, budget: Budget, stop_token_ids: Sequence[int]) -> Decoded:
        return self.liar.lie(role, self.inner.decode(role, budget, stop_token_ids))

    def trace(self, role: Role, budget: Budget) -> tuple[Decoded, Activity]:
        decoded = self.decode(role, budget, ())
        return decoded, Activity(kernels={KERNEL: 1}, calls={"cudaGraphLaunch": 1})

    def top2(self, slot: int, continuation: Sequence[int]) -> tuple[float, float] | None:
        return self.inner.top2(slot, continuation)

    def close(self) -> None:
        self.inner.close()


LIARS: Final[Mapping[str, LyingBackend]] = {
    liar.name: liar
    for liar in (
        LyingBackend("own-trace"),
        LyingBackend("spec-a-fifth", times(1 / 5, speculative=True)),
        LyingBackend("baseline-thirtyfold", times(30, speculative=False)),
        LyingBackend("steps-halved", steps_halved),
        LyingBackend("all-truncated", all_truncated),
        LyingBackend("misses-hidden", misses_hidden),
        LyingBackend("two-steps-as-one", two_steps_as_one),
        LyingBackend("noise-ids", wrong_from(30, token=1_000_000)),
    )
}


def let_in(patch: pytest.MonkeyPatch) -> None:
    """Register all liars as plug-ins, until `patch` is undone."""
    here = [EntryPoint(name, f"{__name__}:BY_NAME.{attribute(name)}", "specgate.backends") for name in LIARS]
    patch.setattr(plugins, "entry_points", lambda group: here if group == "specgate.backends" else [])


def attribute(name: str) -> str:
    return name.replace("-", "_")


BY_NAME: Final = SimpleNamespace(**{attribute(name): liar for name, liar in LIARS.items()})
"""What the entry points point to."""
