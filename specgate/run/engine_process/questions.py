"""The calls that look into an engine after its blocks, and what contradicts a request in their answers.

    top2          the two largest logits at a place
    ranked        the most likely tokens at a place
    ranked_again  the same by a second pass
    follow        plain decoding from a text on
    extend        more of the last block's text
    logits        hashes of the logits at places
    spans         cache blocks and trees in steps
    score         what it thinks of another text
    token_logits  logits of tokens at its places
    drafted       the pair's draft along that text
    draw          independent texts after a prompt
    distribution  which one tokens come from
    origin        which files its code comes from

An answer is None where the engine cannot give one.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

import specgate
from specgate.contract import Budget, Role, Score, TopTokens, protocols
from specgate.contract.draws import TokenLaw
from specgate.contract.protocols import Engine, Text
from specgate.contract.samples.spans import ShownSpans
from specgate.contract.two_builds import Origin
from specgate.contract.types import Check, Count, Counts, Digest, Finite
from specgate.run.engine_process.blocks import PROMPTS, Ids, wrong_in_text
from specgate.run.engine_process.wire import Call, Question, Wrong, counted, shown


@dataclass(frozen=True, slots=True)
class Top2(Question[tuple[Finite, Finite]], kind="top2", field="logits"):
    """`Engine.top2`."""

    slot: int
    continuation: Ids

    def contradictions(self, answer: tuple[float, float], slots: int) -> Wrong:
        if answer[0] < answer[1]:
            yield "logits", shown(str(answer)), "the larger logit comes first"


@dataclass(frozen=True, slots=True)
class RankedAgain(Question[TopTokens], kind="ranked_again", field="top", needs=protocols.RanksAgain):
    """`RanksAgain.ranked_again`."""

    slot: int
    continuation: Ids
    count: int

    def contradictions(self, answer: TopTokens, slots: int) -> Wrong:
        values, tokens = answer.values, answer.tokens
        if not 2 <= len(values) <= max(self.count, 2):
            yield "values", f"a list of {len(values)}", f"2 to {self.count} of the largest logits"
        if any(a < b for a, b in pairwise(values)):
            yield "values", shown(str(values[:4])), "the larger ones come first"
        if tokens and (len(tokens) != len(values) or len(set(tokens)) != len(tokens)):
            yield "tokens", f"a list of {len(tokens)}", f"a token of its own for each of the {len(values)} values"


@dataclass(frozen=True, slots=True)
class Ranked(RankedAgain, kind="ranked"):
    """`RanksTokens.ranked`. An engine that shows no more has its two largest logits, as `Engine.top2` has them."""

    def ask(self, engine: Engine) -> object:
        if isinstance(engine, protocols.RanksTokens):
            return engine.ranked(self.slot, self.continuation, self.count)
        top2 = engine.top2(self.slot, self.continuation)
        return None if top2 is None else TopTokens(top2)


@dataclass(frozen=True, slots=True)
class Follow(Question[Counts], kind="follow", field="tokens", needs=protocols.FollowsText):
    """`FollowsText.follow`."""

    slot: int
    continuation: Ids
    new_tokens: int

    def contradictions(self, answer: tuple[int, ...], slots: int) -> Wrong:
        yield from counted("tokens", answer, self.new_tokens, "tokens that were asked for")


@dataclass(frozen=True, slots=True)
class Extend(Question[Text], kind="extend", field="text", needs=protocols.ExtendsText):
    """`ExtendsText.extend`. Only the engine knows how long the text is that is extended."""

    steps: int

    def contradictions(self, answer: Text, slots: int) -> Wrong:
        yield from wrong_in_text(answer, slots)


ShownLogits = tuple[tuple[tuple[Count, Digest], ...], ...]
"""Slot → (token, SHA-256 of the logits) of every position."""


@dataclass(frozen=True, slots=True)
class Logits(Question[ShownLogits], kind="logits", field="logits", needs=protocols.ShowsLogits):
    """`ShowsLogits.logits`."""

    role: Role
    positions: Ids

    def contradictions(self, answer: ShownLogits, slots: int) -> Wrong:
        yield from counted("logits", answer, slots, PROMPTS)
        for slot, row in enumerate(answer):
            yield from counted(f"logits[{slot}]", row, len(self.positions), "positions")


@dataclass(frozen=True, slots=True)
class Spans(Question[ShownSpans], kind="spans", field="spans", needs=protocols.ShowsSpans):
    """`ShowsSpans.spans`."""

    role: Role
    budget: Budget
    steps: Ids

    def contradictions(self, answer: ShownSpans, slots: int) -> Wrong:
        yield from counted("spans.tokens", answer.tokens, slots, PROMPTS)
        numbers = tuple(step.step for step in answer.steps)
        if numbers != tuple(self.steps[: len(numbers)]):
            yield "spans.steps", str(list(numbers)), f"{list(self.steps)}, as far as the run goes"
        for i, step in enumerate(answer.steps):
            for name in ("lengths", "tables", "writes"):
                yield from counted(f"spans.steps[{i}].{name}", getattr(step, name), slots, PROMPTS)
            for slot, row in enumerate(step.writes):
                yield from counted(f"spans.steps[{i}].writes[{slot}]", row, 2, "ends of a span")
            if step.parents or step.masks:
                for name in ("parents", "masks"):
                    yield from counted(f"spans.steps[{i}].{name}", getattr(step, name), slots, PROMPTS)


@dataclass(frozen=True, slots=True)
class ScoreText(Question[tuple[Score, ...]], kind="score", field="scores", needs=protocols.ScoresTokens):
    """`ScoresTokens.score`."""

    prompt: Ids
    continuation: Ids
    positions: Ids

    def contradictions(self, answer: tuple[Score, ...], slots: int) -> Wrong:
        yield from counted("scores", answer, len(self.positions), "positions")
        for index, score in enumerate(answer):
            if score.logit > score.best_logit:
                yield f"scores[{index}].logit", str(score.logit), f"at most best_logit, {score.best_logit}"


@dataclass(frozen=True, slots=True)
class TokenLogits(
    Question[tuple[TopTokens, ...]], kind="token_logits", field="places", needs=protocols.ShowsTokenLogits
):
    """`ShowsTokenLogits.token_logits`."""

    prompt: Ids
    continuation: Ids
    places: Annotated[Sequence[tuple[int, Ids]], Check(tuple)]
    count: int

    def contradictions(self, answer: tuple[TopTokens, ...], slots: int) -> Wrong:
        yield from counted("places", answer, len(self.places), "places")
        for index, (top, (_, tokens)) in enumerate(zip(answer, self.places, strict=False)):
            if len(top.values) != len(top.tokens) or len(set(top.tokens)) != len(top.tokens):
                yield f"places[{index}]", f"{len(top.values)} values", "one for each of as many different tokens"
            if tokens and top.tokens != tuple(tokens):
                yield f"places[{index}].tokens", shown(top.tokens), f"{list(tokens)}, the tokens that were asked for"


@dataclass(frozen=True, slots=True)
class DraftAlong(Question[Counts], kind="drafted", field="accepted", needs=protocols.DraftsAlong):
    """`DraftsAlong.drafted`."""

    starts: Ids
    k: int

    def contradictions(self, answer: tuple[int, ...], slots: int) -> Wrong:
        yield from counted("accepted", answer, len(self.starts), "cycles")
        if (most := max(answer, default=0)) > self.k:
            yield "accepted", str(most), f"at most {self.k}, the length of a chain"


@dataclass(frozen=True, slots=True)
class Draw(Question[tuple[tuple[Count, ...], ...]], kind="draw", field="texts", needs=protocols.DrawsTexts):
    """`DrawsTexts.draw`."""

    role: Role
    prompt: Ids
    tokens: int
    first: int
    count: int

    def contradictions(self, answer: tuple[tuple[int, ...], ...], slots: int) -> Wrong:
        yield from counted("texts", answer, self.count, "requests")
        for index, text in enumerate(answer):
            yield from counted(f"texts[{index}]", text, self.tokens, "tokens that were asked for")


@dataclass(frozen=True, slots=True)
class ShowLaw(Question[TokenLaw], kind="distribution", field="law", needs=protocols.ShowsDistribution):
    """`ShowsDistribution.distribution`."""

    prompt: Ids
    continuation: Ids
    least: float

    def contradictions(self, answer: TokenLaw, slots: int) -> Wrong:
        if answer.given != tuple(self.continuation):
            yield "given", str(list(answer.given)), f"{list(self.continuation)}, the tokens that were given"


@dataclass(frozen=True, slots=True)
class Where(Call[Origin], kind="origin", field="origin"):
    """The files that the process has imported the engine and specgate from."""

    def ask(self, engine: Engine) -> object:
        module = sys.modules[type(engine).__module__]
        return Origin(
            backend_file=str(module.__file__),
            specgate_file=str(specgate.__file__),
            specgate_version=specgate.__version__,
            python=platform.python_version(),
        )
