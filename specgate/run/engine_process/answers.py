"""The form of every answer, and what a malformed one raises.

An answer is believed to be nothing but bytes until it was read here. Whatever is wrong with it is a BackendError: it
costs the engine its cell, and the run goes on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence, Sized
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from specgate.contract import Score, ServedRequest, TopTokens
from specgate.contract.load import EARLY_NS, OfferedLoad
from specgate.contract.protocols import Decoded, Text
from specgate.errors import BackendError
from specgate.run.engine_process import failures
from specgate.run.engine_process.messages import NO_JSON, Decode, Extend, Request, Serve, Trace, shortened
from specgate.run.engine_process.records import (
    ActivityForm,
    Count,
    DecodedForm,
    Digest,
    FactsForm,
    Finite,
    LawForm,
    OriginForm,
    ScoreForm,
    TextForm,
    TopTokensForm,
)

MOST_BYTES: Final = 256 << 20
"""Bytes of the largest answer that is read at all."""
PLAIN_BYTES: Final = 16 << 20
"""Bytes of an answer without counting its tokens and steps: facts, names of kernels, an error."""
NUMBER_BYTES: Final = 21
"""Bytes of the longest integer of 64 bits, with a comma."""


class Answer(BaseModel):
    """`id`: the number of the request."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    id: int


class Facts(Answer):
    """`scripted`: whether the engine reports on its own decode loop (`protocols.ScriptedTrace`). `follows`: whether it
    can decode on from any text (`protocols.FollowsText`); None from a build that brings an older specgate, which does
    not say.
    """

    kind: Literal["facts"]
    facts: FactsForm
    scripted: bool
    follows: bool | None = None


class Nanoseconds(Answer):
    kind: Literal["nanoseconds"]
    ns: Count


class DecodedBlock(Answer):
    kind: Literal["decoded"]
    decoded: DecodedForm


class Traced(Answer):
    """`source`: who looked, the harness's profiler or the engine itself."""

    kind: Literal["traced"]
    decoded: DecodedForm
    activity: ActivityForm
    source: Literal["profiler", "engine"]


class Top2Logits(Answer):
    kind: Literal["top2"]
    logits: tuple[Finite, Finite] | None


class RankedTokens(Answer):
    kind: Literal["ranked"]
    top: TopTokensForm | None


class FollowedText(Answer):
    """`tokens` is None where the engine cannot decode from any text."""

    kind: Literal["followed"]
    tokens: tuple[Count, ...] | None


class Extended(Answer):
    """`text` is None where the engine cannot extend one."""

    kind: Literal["text"]
    text: TextForm | None


class ShownLogits(Answer):
    """`logits[slot]`: (token, SHA-256 of the logits) of every position. None where the engine shows none."""

    kind: Literal["logits"]
    logits: tuple[tuple[tuple[Count, Digest], ...], ...] | None


class Scored(Answer):
    """`scores` is None where the engine scores no tokens."""

    kind: Literal["scores"]
    scores: tuple[ScoreForm, ...] | None


class DrawnTokens(Answer):
    """`texts` is None where the engine draws none."""

    kind: Literal["drawn"]
    texts: tuple[tuple[Count, ...], ...] | None


class ShownLaw(Answer):
    """`law` is None where the engine shows none."""

    kind: Literal["law"]
    law: LawForm | None


class Whereabouts(Answer):
    kind: Literal["origin"]
    origin: OriginForm


class Failed(Answer):
    """An error of the engine. `error` is its kind; see `failures.KINDS`."""

    kind: Literal["error"]
    error: str
    message: str
    hint: str | None


A = TypeVar("A", bound=Answer)


@cache
def _adapter(kind: type[Answer]) -> TypeAdapter[Any]:
    return TypeAdapter(Annotated[kind | Failed, Field(discriminator="kind")])  # type: ignore[arg-type]


def limit_of(request: Request, slots: int) -> int:
    """The most bytes that an answer to `request` may have. A block over `slots` prompts may have its tokens and steps,
    and a server's block the time of every token; each number may be as long as an integer of 64 bits can be. How long
    a text is that is extended, only the engine knows.
    """
    if isinstance(request, Extend):
        return MOST_BYTES
    if not isinstance(request, Decode | Serve | Trace):
        return PLAIN_BYTES
    longest = request.budget.longest(request.role.k) + 2
    if isinstance(request, Serve):  # a token, the time of its chunk, and how many tokens that held
        return min(MOST_BYTES, PLAIN_BYTES + NUMBER_BYTES * len(request.prompts) * 3 * longest)
    numbers = slots * 2 * longest + longest * (2 + 2 * slots)
    return min(MOST_BYTES, PLAIN_BYTES + NUMBER_BYTES * numbers)


def read(form: type[A], body: bytes, number: int, backend: str, request: Request) -> A:
    """The answer to request `number`. Raises the error that it reports, and BackendError if it is malformed."""
    try:
        answer = _adapter(form).validate_json(body, strict=True)
    except ValidationError as error:
        raise malformed(backend, request.kind, *_first(error)) from None
    if answer.id != number:
        raise malformed(backend, request.kind, "id", str(answer.id), f"it answers request {number}")
    if isinstance(answer, Failed):
        raise failures.from_data(answer.error, answer.message, answer.hint)
    assert isinstance(answer, form)
    return answer


def malformed(backend: str, call: str, field: str, value: str, right: str) -> BackendError:
    """An engine's answer that cannot be used."""
    return BackendError(f"back end {backend}: malformed answer to {call}: {field}: {value}", hint=right)


def _first(error: ValidationError) -> tuple[str, str, str]:
    """Field, value, and what would be right, of the first thing that is wrong."""
    found = error.errors(include_url=False, include_context=False)[0]
    path = [part for part in found["loc"][1:] if part != "decoded"]
    field = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")
    if found["type"] == "missing":
        return field, "missing", "the field is required"
    said = found["msg"].removeprefix("Input ")
    return field or "the message", shown(found["input"]), f"it {said}" if said != found["msg"] else said


def shown(value: object) -> str:
    """A value of an answer, shortened."""
    if isinstance(value, Mapping):
        if isinstance(foreign := value.get(NO_JSON), str):
            return foreign
        return f"an object with the keys {shortened(', '.join(map(str, value)))}" if value else "an empty object"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    if isinstance(value, bytes):
        return shortened(repr(value[:200]))
    return shortened(json.dumps(value, ensure_ascii=False, default=str))


Wrong = Iterator[tuple[str, str, str]]
"""(field, value, what would be right) of everything that does not fit."""


def refuse(wrong: Wrong, backend: str, request: Request) -> None:
    """Raise BackendError if anything is wrong with an answer to `request`."""
    for field, value, right in wrong:
        raise malformed(backend, request.kind, field, value, right)


def counted(field: str, found: Sized, count: int, each: str) -> Wrong:
    """What is wrong with `found` unless it has `count` entries, one for each of what `each` says."""
    if len(found) != count:
        yield field, f"a list of {len(found)}", f"one for each of the {count} {each}"


PROMPTS: Final = "prompts that were prefilled"


def wrong_in_block(decoded: Decoded, slots: int) -> Wrong:
    """A block has a row per prompt and a row per step wherever it must, and takes time if anything was decoded."""
    yield from wrong_in_text(decoded, slots)
    yield from counted("truncated", decoded.truncated, slots, PROMPTS)
    steps = len(decoded.step_ns)
    for field, table in (("accepted", decoded.accepted), ("drafted", decoded.drafted)):
        yield from counted(field, table, steps, "steps of step_ns")
        for step, row in enumerate(table):
            yield from counted(f"{field}[{step}]", row, slots, PROMPTS)
    if decoded.experts is not None:
        yield from counted("experts.touched", decoded.experts.touched, steps, "steps of step_ns")
    if decoded.served is not None:
        yield from counted("served.requests", decoded.served.requests, slots, PROMPTS)
    if decoded.began_ns is not None and decoded.prefill_ns is None:
        yield "began_ns", str(decoded.began_ns), "null without prefill_ns: it says when that prefill began"
    emitted = sum(len(row) - 1 for row in decoded.tokens)
    if decoded.elapsed_ns == 0 and (steps or emitted):
        yield "elapsed_ns", "0", f"it should be greater than 0: the block has {steps} steps and {emitted} tokens"


def wrong_in_serving(decoded: Decoded, requests: int, offered: OfferedLoad) -> Wrong:
    """Every request under load has a slot or was refused, none has both, it was sent as `offered` says, and what a
    block must have holds.
    """
    if (served := decoded.served) is None:
        yield "served", "null", "a block of requests under load has its requests"
        return
    if len(served.requests) + len(served.refused) != requests:
        found = f"{len(served.requests)} requests and {len(served.refused)} refused"
        yield "served", found, f"one for each of the {requests} prompts"
    answered = served.prompts or tuple(range(len(served.requests)))
    if sorted((*answered, *(r.prompt for r in served.refused))) != list(range(requests)):
        yield "served.prompts", shown(list(answered)), f"each of the {requests} prompts once, with the refused ones"
    yield from wrong_in_block(decoded, len(served.requests))
    if offered.clients is None:
        yield from wrong_in_arrivals(served.requests, answered, offered.arrivals_ns)
        return
    for slot, request in enumerate(served.requests):
        if request.due_ns is not None:
            right = "null: in a closed loop nothing but the client sets the time"
            yield f"served.requests[{slot}].due_ns", str(request.due_ns), right


def wrong_in_arrivals(requests: Sequence[ServedRequest], answered: Sequence[int], arrivals_ns: Sequence[int]) -> Wrong:
    """The requests of an open loop were due when the harness says, and none was sent before that, or before its turn.

    `answered`: slot → the index of its request. That one was sent late is no error: it counts from when it was due.
    """
    turns = sorted(zip(answered, range(len(requests)), strict=True))
    latest = 0
    for index, slot in turns:
        request, due_ns = requests[slot], arrivals_ns[index]
        if request.due_ns != due_ns:
            yield f"served.requests[{slot}].due_ns", shown(request.due_ns), f"{due_ns}, as request {index} was offered"
        if request.sent_ns < due_ns - EARLY_NS:
            yield f"served.requests[{slot}].sent_ns", str(request.sent_ns), f"not before it was due, at {due_ns}"
        if request.sent_ns < latest - EARLY_NS:
            right = f"not before an earlier request, which was sent at {latest}"
            yield f"served.requests[{slot}].sent_ns", str(request.sent_ns), right
        latest = max(latest, request.sent_ns)


def wrong_in_text(text: Decoded | Text, slots: int) -> Wrong:
    """A text has a row per prompt."""
    yield from counted("tokens", text.tokens, slots, PROMPTS)
    yield from counted("finish", text.finish, slots, PROMPTS)


def wrong_in_logits(logits: Sequence[Sequence[object]], slots: int, positions: int) -> Wrong:
    """There is a row per prompt, with an entry per position."""
    yield from counted("logits", logits, slots, PROMPTS)
    for slot, row in enumerate(logits):
        yield from counted(f"logits[{slot}]", row, positions, "positions")


def wrong_in_top2(logits: tuple[float, float]) -> Wrong:
    """The larger one comes first."""
    if logits[0] < logits[1]:
        yield "logits", shown(str(logits)), "the larger logit comes first"


def wrong_in_ranking(top: TopTokens, count: int) -> Wrong:
    """At least two, at most as many as asked for, the larger ones first; and a token for each, or none."""
    if not 2 <= len(top.values) <= max(count, 2):
        yield "values", f"a list of {len(top.values)}", f"2 to {count} of the largest logits"
    if any(a < b for a, b in pairwise(top.values)):
        yield "values", shown(str(top.values[:4])), "the larger ones come first"
    if top.tokens and (len(top.tokens) != len(top.values) or len(set(top.tokens)) != len(top.tokens)):
        yield "tokens", f"a list of {len(top.tokens)}", f"a token of its own for each of the {len(top.values)} values"


def wrong_in_draws(texts: Sequence[Sequence[int]], count: int, tokens: int) -> Wrong:
    """There is a text per request, and each has as many tokens as were asked for."""
    yield from counted("texts", texts, count, "requests")
    for index, text in enumerate(texts):
        yield from counted(f"texts[{index}]", text, tokens, "tokens that were asked for")


def wrong_in_scores(scores: Sequence[Score], positions: int) -> Wrong:
    """There is a score per position, and no logit is larger than the largest."""
    yield from counted("scores", scores, positions, "positions")
    for index, score in enumerate(scores):
        if score.logit > score.best_logit:
            yield f"scores[{index}].logit", str(score.logit), f"at most best_logit, {score.best_logit}"
