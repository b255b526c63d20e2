"""The form of every answer, and what a malformed one raises.

An answer is believed to be nothing but bytes until it was read here. Whatever is wrong with it is a BackendError: it
costs the engine its cell, and the run goes on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from specgate.api import Decoded
from specgate.errors import BackendError
from specgate.run.engine_process import failures
from specgate.run.engine_process.messages import NO_JSON, Decode, Request, Trace, shortened
from specgate.run.engine_process.records import ActivityForm, Count, DecodedForm, FactsForm, Finite

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
    """`scripted`: whether the engine reports on its own decode loop (`api.ScriptedTrace`)."""

    kind: Literal["facts"]
    facts: FactsForm
    scripted: bool


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
    and a server's block the time of every token; each number may be as long as an integer of 64 bits can be.
    """
    if not isinstance(request, Decode | Trace):
        return PLAIN_BYTES
    longest = request.budget.longest(request.role.k) + 2
    numbers = slots * 2 * longest + longest * (1 + 2 * slots)
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


def check_block(decoded: Decoded, slots: int, backend: str, request: Request) -> None:
    """Raise BackendError unless a block has a row per prompt and a row per step wherever it must."""
    for field, value, right in _wrong(decoded, slots):
        raise malformed(backend, request.kind, field, value, right)


def _wrong(decoded: Decoded, slots: int) -> Iterator[tuple[str, str, str]]:
    """(field, value, what would be right) of all that does not fit together."""
    per_slot = f"one for each of the {slots} prompts that were prefilled"
    for field in ("tokens", "truncated", "finish"):
        if (rows := len(getattr(decoded, field))) != slots:
            yield field, f"a list of {rows}", per_slot
    steps = len(decoded.step_ns)
    for field in ("accepted", "drafted"):
        table = getattr(decoded, field)
        if len(table) != steps:
            yield field, f"a list of {len(table)}", f"one for each of the {steps} steps of step_ns"
        for step, row in enumerate(table):
            if len(row) != slots:
                yield f"{field}[{step}]", f"a list of {len(row)}", per_slot
    if decoded.served is not None and (requests := len(decoded.served.requests)) != slots:
        yield "served.requests", f"a list of {requests}", per_slot
    emitted = sum(len(row) - 1 for row in decoded.tokens)
    if decoded.elapsed_ns == 0 and (steps or emitted):
        yield "elapsed_ns", "0", f"it should be greater than 0: the block has {steps} steps and {emitted} tokens"
