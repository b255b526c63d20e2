"""A call of an engine as two messages: a request, and the answer with the request's number.

    {"id": 7, "request": {"kind": "follow", "slot": 0, …}}
    {"id": 7, "kind": "answer", "tokens": [5, 6]}          or  {"id": 7, "kind": "error", …}

A call is declared once, as a subclass of `Call`. An answer is believed to be nothing but bytes until it was read here.
Whatever is wrong with it is a BackendError: it costs the engine its cell, and the run goes on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sized
from dataclasses import dataclass, fields, is_dataclass, make_dataclass
from functools import cache
from pathlib import PurePath
from types import NoneType
from typing import Annotated, Any, ClassVar, Final, Generic, Literal, TypeVar, get_args, get_origin

from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import from_json

from specgate.contract.protocols import Engine
from specgate.contract.reading import ABSENT, problems_in
from specgate.contract.types import FROM_ENGINE, dotted, fields_of
from specgate.errors import BackendError
from specgate.run.engine_process import failures

SHOWN: Final = 80
"""Characters of a value that an error shows."""
NO_JSON: Final = "no JSON"
"""The key of an object that stands for a value which JSON does not have."""
MOST_BYTES: Final = 256 << 20
"""Bytes of the largest answer that is read at all."""

A = TypeVar("A")
Wrong = Iterator[tuple[str, str, str]]
"""(field, value, what would be right) of everything in an answer that does not fit."""


# ── calls ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Call(Generic[A]):
    """One call of an engine, whose fields are its parameters, in order. `A`: the noun of its answer.

    What a class says of itself, as `class Follow(…, kind="follow")`, those that are made from it say, too.
    `kind`: the name of the request and of the engine's method. `field`: the field of the answer's message with the
    noun. Without one, the fields of the noun are those of the message.
    """

    kind: ClassVar[str] = ""
    field: ClassVar[str] = ""

    def __init_subclass__(cls, kind: str = "", field: str = "") -> None:
        cls.kind, cls.field = kind or cls.kind, field or cls.field
        if cls.kind:
            CALLS[cls.kind] = cls

    def ask(self, engine: Engine) -> object:
        """Return the answer of `engine`, in whose process this runs."""
        return getattr(engine, self.kind)(*fields_of(type(self), self).values())

    def wrong(self, answer: A, slots: int) -> Wrong:
        """Yield what contradicts the request in an answer of an engine with `slots` prompts."""
        return iter(())

    @classmethod
    def noun(cls) -> Any:
        """Return the annotation of the answer's noun."""
        bases: tuple[Any, ...] = cls.__orig_bases__  # type: ignore[attr-defined]  # every generic class has it
        return next(get_args(base)[0] for base in bases if get_origin(base) in (Call, Question))


class Question(Call[A | None]):
    """A call that only some engines can answer: those that are a `needs`. The answer of any other is None."""

    needs: ClassVar[type] = object

    def __init_subclass__(cls, kind: str = "", field: str = "", needs: type | None = None) -> None:
        super().__init_subclass__(kind, field)
        cls.needs = needs or cls.needs

    def ask(self, engine: Engine) -> object:
        return super().ask(engine) if isinstance(engine, self.needs) else None

    def wrong(self, answer: A | None, slots: int) -> Wrong:
        return iter(()) if answer is None else self.contradictions(answer, slots)

    def contradictions(self, answer: A, slots: int) -> Wrong:
        """Yield what contradicts the request in an answer that is not None."""
        return iter(())

    @classmethod
    def noun(cls) -> Any:
        return super().noun() | None


CALLS: Final[dict[str, type[Call[Any]]]] = {}
"""Kind of the request → call."""


@dataclass(frozen=True, slots=True)
class Failed:
    """An error of the engine. `error` is its kind; see `failures.KINDS`."""

    id: int
    kind: Literal["error"]
    error: str
    message: str
    hint: str | None


@cache
def message_of(kind: str) -> Any:
    """Return the class of the message that answers a request of this kind."""
    call = CALLS[kind]
    head: list[Any] = [("id", int), ("kind", Literal["answer"])]
    if call.field:
        return make_dataclass("Answer", [*head, (call.field, call.noun())])
    return make_dataclass("Answer", head, bases=(call.noun(),), frozen=True, kw_only=True)


@cache
def _answers(kind: str) -> TypeAdapter[Any]:
    return TypeAdapter(Annotated[message_of(kind) | Failed, Field(discriminator="kind")])  # type: ignore[arg-type]


@cache
def _requests(kind: str) -> TypeAdapter[Call[Any]]:
    return TypeAdapter(CALLS[kind])


# ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def request_message(number: int, request: Call[Any]) -> bytes:
    """Return `request` as JSON, with its number, which its answer repeats."""
    return encoded({"id": number, "request": {"kind": request.kind, **fields_of(type(request), request)}})


def request_of(body: bytes) -> tuple[int, Call[Any]]:
    """Return the number and the request in a message of the harness."""
    message = from_json(body)
    number, request = message["id"], message["request"]
    return number, _requests(request.pop("kind")).validate_python(request)


# ── answers, at the engine's side ────────────────────────────────────────────────────────────────────────────────────


def answer_message(number: int, request: Call[Any], answer: object) -> bytes:
    """Return what the engine has answered to `request` as JSON. Raises BackendError if it is not of the right class."""
    kinds = (request.noun(), *get_args(request.noun()))
    noun = next((kind for kind in kinds if is_dataclass(kind)), None)
    if noun is not None and not (answer is None and NoneType in kinds):
        answer = record(answer, noun, request.kind)
    named = {request.field: answer} if request.field else answer
    assert isinstance(named, Mapping)
    return encoded({"id": number, "kind": "answer", **named})


def error_message(number: int, request: Call[Any], error: BaseException) -> bytes:
    """Return an error that `request` has raised as JSON."""
    return encoded({"id": number, **failures.as_data(error, request.kind)})


def record(value: Any, noun: Any, call: str) -> dict[str, object]:
    """Return the fields of a noun. Raises BackendError if `call` returned anything else."""
    if not isinstance(value, noun):
        raise unusable(call, value, f"a specgate {noun.__name__}")
    return fields_of(noun, value)


def unusable(call: str, value: object, needed: str) -> BackendError:
    """Return the error for a value that an engine's `call` returned in the place of what is `needed`."""
    return BackendError(f"the engine's {call} returned {described(value)}", hint=f"{needed} is needed")


# ── answers, at the harness's side ───────────────────────────────────────────────────────────────────────────────────


def read(request: Call[A], body: bytes, number: int, backend: str) -> A:
    """Return the answer to request `number`. Raises the error that it reports, and BackendError if it is malformed."""
    try:
        message = _answers(request.kind).validate_json(body, strict=True, extra="forbid", context=FROM_ENGINE)
    except ValidationError as error:
        raise malformed(backend, request.kind, *_first(error, message_of(request.kind))) from None
    if message.id != number:
        raise malformed(backend, request.kind, "id", str(message.id), f"it answers request {number}")
    if isinstance(message, Failed):
        raise failures.from_data(message.error, message.message, message.hint)
    answer: A = getattr(message, request.field) if request.field else message
    return answer


def refuse(wrong: Wrong, backend: str, call: str) -> None:
    """Raise BackendError if anything is wrong with an answer to `call`."""
    for field, value, right in wrong:
        raise malformed(backend, call, field, value, right)


def malformed(backend: str, call: str, field: str, value: str, right: str) -> BackendError:
    """Return the error for an engine's answer that cannot be used."""
    return BackendError(f"back end {backend}: malformed answer to {call}: {field}: {value}", hint=right)


def _first(error: ValidationError, message: Any) -> tuple[str, str, str]:
    """Return field, value, and what would be right, of the first thing that is wrong."""
    first, value = problems_in(error, message, ABSENT)[0], error.errors(include_url=False)[0]
    # The path begins with the kind of the message. The names of a block's fields say enough.
    field = dotted(tuple(part for part in first.key[1:] if part != "decoded"))
    missing = value["type"] in ("missing", "missing_argument")
    return field or "the message", "missing" if missing else shown(value["input"]), first.why


def counted(field: str, items: Sized, count: int, each: str) -> Wrong:
    """Yield what is wrong with `items` unless it has `count` entries, one for each of what `each` says."""
    if len(items) != count:
        yield field, f"a list of {len(items)}", f"one for each of the {count} {each}"


# ── values ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def encoded(message: object) -> bytes:
    """Return `message` as JSON: data classes as objects, tuples as arrays.

    What JSON does not have, such as a number of numpy's, is written as an object that says so. The reader, which
    expects something else there, can then name it. Raises ValueError for an integer of thousands of digits and for data
    that contain themselves.
    """
    return json.dumps(message, default=_plain, separators=(",", ":")).encode()


def _plain(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, PurePath):
        return str(value)
    return {NO_JSON: described(value)}


def described(value: object) -> str:
    """Return a value and its type, in at most SHOWN characters or so."""
    try:
        kind, text = type(value), repr(value)
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    except Exception:
        return "something that cannot be shown"
    return f"{name}: {shortened(text)}"


def shown(value: object) -> str:
    """Return a value of an answer, shortened."""
    if isinstance(value, Mapping):
        if isinstance(foreign := value.get(NO_JSON), str):
            return foreign
        return f"an object with the keys {shortened(', '.join(map(str, value)))}" if value else "an empty object"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    if isinstance(value, bytes):
        return shortened(repr(value[:200]))
    return shortened(json.dumps(value, ensure_ascii=False, default=str))


def shortened(text: str, most: int = SHOWN) -> str:
    """Return `text`, with an ellipsis in the place of what is longer than `most` characters."""
    return text if len(text) <= most else text[:most] + "…"
