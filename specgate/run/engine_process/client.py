"""An `protocols.Engine` whose calls are messages, whoever carries them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Concatenate, ParamSpec, TypeVar

from specgate.contract import Budget, EngineFacts, Role
from specgate.contract.load import OfferedLoad
from specgate.contract.protocols import Activity, Decoded, OpenRequest
from specgate.errors import SpecgateError
from specgate.run.engine_process import questions, wire
from specgate.run.engine_process.blocks import Decode, Open, Prefill, Serve, Trace
from specgate.run.engine_process.wire import Call

A = TypeVar("A")
P = ParamSpec("P")


def asks(call: Callable[P, Call[A]]) -> Callable[Concatenate[EngineCalls, P], A]:
    """Return the method that asks `call`. Its parameters are the fields of the call."""

    def method(self: EngineCalls, /, *fields: P.args, **named: P.kwargs) -> A:
        return self._ask(call(*fields, **named))

    return method


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

    decode = asks(Decode)

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
        return self._ask(Serve(role, tuple(map(tuple, prompts)), budget, offered, stop_token_ids))

    def trace(self, role: Role, budget: Budget) -> tuple[Decoded, Activity]:
        """Decode one block under the harness's own profiler, or the engine's own trace if it is `scripted`."""
        traced = self._ask(request := Trace(role, budget))
        if (traced.source == "engine") != self.scripted:
            right = "the engine's own trace, as when it was opened" if self.scripted else "the harness's profiler"
            raise wire.malformed(self.backend, request.kind, "source", traced.source, right)
        return traced.decoded, traced.activity

    top2 = asks(questions.Top2)
    ranked = asks(questions.Ranked)
    ranked_again = asks(questions.RankedAgain)
    follow = asks(questions.Follow)
    extend = asks(questions.Extend)
    logits = asks(questions.Logits)
    spans = asks(questions.Spans)
    score = asks(questions.ScoreText)
    token_logits = asks(questions.TokenLogits)
    drafted = asks(questions.DraftAlong)
    draw = asks(questions.Draw)
    distribution = asks(questions.ShowLaw)
    origin = asks(questions.Where)

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
