"""An `protocols.Engine` whose calls are messages, whoever carries them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from specgate.contract import Budget, EngineFacts, Role, Score, TopTokens
from specgate.contract.draws import TokenLaw
from specgate.contract.load import OfferedLoad
from specgate.contract.protocols import Activity, Decoded, OpenRequest, Text
from specgate.contract.samples.spans import ShownSpans
from specgate.contract.two_builds import Origin
from specgate.errors import SpecgateError
from specgate.run.engine_process import wire
from specgate.run.engine_process.blocks import Decode, Open, Prefill, Serve, Trace
from specgate.run.engine_process.questions import (
    DraftAlong,
    Draw,
    Extend,
    Follow,
    Logits,
    Ranked,
    RankedAgain,
    ScoreText,
    ShowLaw,
    ShownLogits,
    Spans,
    TokenLogits,
    Top2,
    Where,
)
from specgate.run.engine_process.wire import Call

A = TypeVar("A")


class EngineCalls(ABC):
    """The calls of an engine. `open` comes first.

    A call raises the error that the engine reports, and BackendError if its answer is malformed. A call that is
    optional returns None where the engine cannot answer it.
    """

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self.scripted = False
        """Whether the engine reports on its own decode loop (`protocols.ScriptedTrace`), so that no profiler looks."""
        self._slots = self._number = 0

    def open(self, request: OpenRequest) -> None:
        """Load the pair."""
        opened = self._ask(Open.of(self.backend, request))
        self._facts = replace(opened.facts, follows=opened.follows)
        self.scripted = opened.scripted

    def facts(self) -> EngineFacts:
        return self._facts

    def prefill(self, prompts: Sequence[Sequence[int]], *, draft: bool) -> int:
        self._slots = len(prompts)
        return self._ask(Prefill(tuple(map(tuple, prompts)), draft))

    def decode(self, role: Role, budget: Budget, stop_token_ids: Sequence[int]) -> Decoded:
        return self._ask(Decode(role, budget, tuple(stop_token_ids)))

    def serve(
        self,
        role: Role,
        prompts: Sequence[Sequence[int]],
        budget: Budget,
        offered: OfferedLoad,
        stop_token_ids: Sequence[int],
    ) -> Decoded:
        """As `protocols.ServesLoad.serve`. Raises BackendError where the engine is none."""
        self._slots = len(prompts)
        return self._ask(Serve(role, tuple(map(tuple, prompts)), budget, offered, tuple(stop_token_ids)))

    def trace(self, role: Role, budget: Budget) -> tuple[Decoded, Activity]:
        """Decode one block under the harness's own profiler, or the engine's own trace if it is `scripted`."""
        traced = self._ask(request := Trace(role, budget))
        if (traced.source == "engine") != self.scripted:
            right = "the engine's own trace, as when it was opened" if self.scripted else "the harness's profiler"
            raise wire.malformed(self.backend, request.kind, "source", traced.source, right)
        return traced.decoded, traced.activity

    def top2(self, slot: int, continuation: Sequence[int]) -> tuple[float, float] | None:
        return self._ask(Top2(slot, tuple(continuation)))

    def ranked(self, slot: int, continuation: Sequence[int], count: int) -> TopTokens | None:
        """As `protocols.RanksTokens.ranked`; of an engine that shows no more, its two largest logits, as `top2` has
        them.
        """
        return self._ask(Ranked(slot, tuple(continuation), count))

    def ranked_again(self, slot: int, continuation: Sequence[int], count: int) -> TopTokens | None:
        """As `protocols.RanksAgain.ranked_again`."""
        return self._ask(RankedAgain(slot, tuple(continuation), count))

    def follow(self, slot: int, continuation: Sequence[int], new_tokens: int) -> tuple[int, ...] | None:
        """As `protocols.FollowsText.follow`."""
        return self._ask(Follow(slot, tuple(continuation), new_tokens))

    def extend(self, steps: int) -> Text | None:
        """As `protocols.ExtendsText.extend`."""
        return self._ask(Extend(steps))

    def logits(self, role: Role, positions: Sequence[int]) -> ShownLogits | None:
        """As `protocols.ShowsLogits.logits`."""
        return self._ask(Logits(role, tuple(positions)))

    def spans(self, role: Role, budget: Budget, steps: Sequence[int]) -> ShownSpans | None:
        """As `protocols.ShowsSpans.spans`."""
        return self._ask(Spans(role, budget, tuple(steps)))

    def score(
        self, prompt: Sequence[int], continuation: Sequence[int], positions: Sequence[int]
    ) -> tuple[Score, ...] | None:
        """As `protocols.ScoresTokens.score`."""
        return self._ask(ScoreText(tuple(prompt), tuple(continuation), tuple(positions)))

    def token_logits(
        self,
        prompt: Sequence[int],
        continuation: Sequence[int],
        places: Sequence[tuple[int, Sequence[int]]],
        count: int,
    ) -> tuple[TopTokens, ...] | None:
        """As `protocols.ShowsTokenLogits.token_logits`."""
        wanted = tuple((position, tuple(tokens)) for position, tokens in places)
        return self._ask(TokenLogits(tuple(prompt), tuple(continuation), wanted, count))

    def drafted(self, starts: Sequence[int], k: int) -> tuple[int, ...] | None:
        """As `protocols.DraftsAlong.drafted`."""
        return self._ask(DraftAlong(tuple(starts), k))

    def draw(
        self, role: Role, prompt: Sequence[int], tokens: int, first: int, count: int
    ) -> tuple[tuple[int, ...], ...] | None:
        """As `protocols.DrawsTexts.draw`."""
        return self._ask(Draw(role, tuple(prompt), tokens, first, count))

    def distribution(self, prompt: Sequence[int], continuation: Sequence[int], least: float) -> TokenLaw | None:
        """As `protocols.ShowsDistribution.distribution`."""
        return self._ask(ShowLaw(tuple(prompt), tuple(continuation), least))

    def origin(self) -> Origin:
        """Return the files that the process has imported the engine and specgate from."""
        return self._ask(Where())

    def _ask(self, request: Call[A]) -> A:
        self._number += 1
        message = wire.request_message(self._number, request)
        body = self._exchange(request.kind, message)
        try:
            answer = wire.read(request, body, self._number, self.backend)
        except SpecgateError as error:
            raise self._reported(error) from None
        wire.refuse(request.wrong(answer, self._slots), self.backend, request.kind)
        return answer

    def _reported(self, error: SpecgateError) -> SpecgateError:
        """Return the error to raise for `error`, which an answer reports or is."""
        return error

    @abstractmethod
    def _exchange(self, call: str, message: bytes) -> bytes:
        """Send the request `message` of the call named `call`, and return its answer."""
