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
from specgate.contract.two_builds import Origin
from specgate.errors import SpecgateError
from specgate.run.engine_process import answers
from specgate.run.engine_process.messages import (
    Decode,
    Draw,
    Extend,
    Follow,
    Logits,
    Numbered,
    Prefill,
    Ranked,
    Request,
    ScoreText,
    Serve,
    ShowLaw,
    Top2,
    Trace,
    Where,
    encoded,
    open_of,
)
from specgate.run.engine_process.records import DecodedForm

A = TypeVar("A", bound=answers.Answer)


class EngineCalls(ABC):
    """The calls of an engine. `open` comes first.

    A call raises the error that the engine reports, and BackendError if its answer is malformed.
    """

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self.scripted = False
        """Whether the engine reports on its own decode loop (`protocols.ScriptedTrace`), so that no profiler looks."""
        self._slots = self._number = 0

    def open(self, request: OpenRequest) -> None:
        """Load the pair."""
        answer = self._ask(open_of(self.backend, request), answers.Facts)
        self._facts: EngineFacts = replace(answer.facts.made(), follows=answer.follows)
        self.scripted = answer.scripted

    def facts(self) -> EngineFacts:
        return self._facts

    def prefill(self, prompts: Sequence[Sequence[int]], *, draft: bool) -> int:
        self._slots = len(prompts)
        return self._ask(Prefill(tuple(map(tuple, prompts)), draft), answers.Nanoseconds).ns

    def decode(self, role: Role, budget: Budget, stop_token_ids: Sequence[int]) -> Decoded:
        request = Decode(role, budget, tuple(stop_token_ids))
        return self._block(self._ask(request, answers.DecodedBlock).decoded, request)

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
        request = Serve(role, tuple(map(tuple, prompts)), budget, offered, tuple(stop_token_ids))
        decoded: Decoded = self._ask(request, answers.DecodedBlock).decoded.made()
        answers.refuse(answers.wrong_in_serving(decoded, len(prompts), offered), self.backend, request)
        return decoded

    def trace(self, role: Role, budget: Budget) -> tuple[Decoded, Activity]:
        """Decode one block under the harness's own profiler, or the engine's own trace if it is `scripted`."""
        request = Trace(role, budget)
        answer = self._ask(request, answers.Traced)
        if (answer.source == "engine") != self.scripted:
            right = "the engine's own trace, as when it was opened" if self.scripted else "the harness's profiler"
            raise answers.malformed(self.backend, request.kind, "source", answer.source, right)
        activity: Activity = answer.activity.made()
        return self._block(answer.decoded, request), activity

    def _block(self, form: DecodedForm, request: Request) -> Decoded:
        decoded: Decoded = form.made()
        answers.refuse(answers.wrong_in_block(decoded, self._slots), self.backend, request)
        return decoded

    def top2(self, slot: int, continuation: Sequence[int]) -> tuple[float, float] | None:
        request = Top2(slot, tuple(continuation))
        logits = self._ask(request, answers.Top2Logits).logits
        if logits is not None:
            answers.refuse(answers.wrong_in_top2(logits), self.backend, request)
        return logits

    def ranked(self, slot: int, continuation: Sequence[int], count: int) -> TopTokens | None:
        """As `protocols.RanksTokens.ranked`; of an engine that shows no more, its two largest logits, as `top2` has
        them.
        """
        request = Ranked(slot, tuple(continuation), count)
        form = self._ask(request, answers.RankedTokens).top
        if form is None:
            return None
        top: TopTokens = form.made()
        answers.refuse(answers.wrong_in_ranking(top, count), self.backend, request)
        return top

    def follow(self, slot: int, continuation: Sequence[int], new_tokens: int) -> tuple[int, ...] | None:
        """As `protocols.FollowsText.follow`; None where the engine cannot."""
        request = Follow(slot, tuple(continuation), new_tokens)
        tokens = self._ask(request, answers.FollowedText).tokens
        if tokens is not None:
            wrong = answers.counted("tokens", tokens, new_tokens, "tokens that were asked for")
            answers.refuse(wrong, self.backend, request)
        return tokens

    def extend(self, steps: int) -> Text | None:
        """As `protocols.ExtendsText.extend`; None where the engine cannot."""
        request = Extend(steps)
        form = self._ask(request, answers.Extended).text
        if form is None:
            return None
        text: Text = form.made()
        answers.refuse(answers.wrong_in_text(text, self._slots), self.backend, request)
        return text

    def logits(self, role: Role, positions: Sequence[int]) -> tuple[tuple[tuple[int, str], ...], ...] | None:
        """As `protocols.ShowsLogits.logits`; None where the engine does not show its logits."""
        request = Logits(role, tuple(positions))
        logits = self._ask(request, answers.ShownLogits).logits
        if logits is not None:
            answers.refuse(answers.wrong_in_logits(logits, self._slots, len(positions)), self.backend, request)
        return logits

    def score(
        self, prompt: Sequence[int], continuation: Sequence[int], positions: Sequence[int]
    ) -> tuple[Score, ...] | None:
        """As `protocols.ScoresTokens.score`; None where the engine scores no tokens."""
        request = ScoreText(tuple(prompt), tuple(continuation), tuple(positions))
        forms = self._ask(request, answers.Scored).scores
        if forms is None:
            return None
        scores: tuple[Score, ...] = tuple(form.made() for form in forms)
        answers.refuse(answers.wrong_in_scores(scores, len(positions)), self.backend, request)
        return scores

    def draw(
        self, role: Role, prompt: Sequence[int], tokens: int, first: int, count: int
    ) -> tuple[tuple[int, ...], ...] | None:
        """As `protocols.DrawsTexts.draw`; None where the engine draws none."""
        request = Draw(role, tuple(prompt), tokens, first, count)
        texts = self._ask(request, answers.DrawnTokens).texts
        if texts is not None:
            answers.refuse(answers.wrong_in_draws(texts, count, tokens), self.backend, request)
        return texts

    def distribution(self, prompt: Sequence[int], continuation: Sequence[int], least: float) -> TokenLaw | None:
        """As `protocols.ShowsDistribution.distribution`; None where the engine shows none."""
        request = ShowLaw(tuple(prompt), tuple(continuation), least)
        form = self._ask(request, answers.ShownLaw).law
        if form is None:
            return None
        law: TokenLaw = form.made()
        if law.given != request.continuation:
            right = f"{list(request.continuation)}, the tokens that were given"
            raise answers.malformed(self.backend, request.kind, "given", str(list(law.given)), right)
        return law

    def origin(self) -> Origin:
        """Which files the process has imported the engine and specgate from."""
        origin: Origin = self._ask(Where(), answers.Whereabouts).origin.made()
        return origin

    def _ask(self, request: Request, form: type[A]) -> A:
        self._number += 1
        message = encoded(Numbered(self._number, request))
        body = self._exchange(request.kind, message, answers.limit_of(request, self._slots))
        try:
            return answers.read(form, body, self._number, self.backend, request)
        except SpecgateError as error:
            raise self._reported(error) from None

    def _reported(self, error: SpecgateError) -> SpecgateError:
        """The error to raise for `error`, which an answer reports or is."""
        return error

    @abstractmethod
    def _exchange(self, call: str, message: bytes, limit: int) -> bytes:
        """Send the request `message` of the call named `call`, and return its answer of at most `limit` bytes."""
