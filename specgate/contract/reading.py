"""Data becomes a noun here, and nowhere else: a document, an engine's answer, a stored file.

Types and constraints are those that the noun declares (`contract.types`). Every problem has the path of its key and
says in our words what would be right.

This module imports pydantic, which is slow to import, so only modules that are themselves imported late may import it.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Annotated, Any, Final, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from specgate.contract.types import FILLED_IN, KeyPath, Range, dotted

T = TypeVar("T")

ABSENT: Final = object()
"""Stands for the value of a key that is not there."""


class Problem(NamedTuple):
    """`key` is wrong for the reason `why`."""

    key: KeyPath
    why: str


class Malformed(ValueError):
    """Data that is no noun. It has at least one problem, and all of them in the order of the fields."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__(f"{dotted(problems[0].key) or 'the data'}: {problems[0].why}")
        self.problems = tuple(problems)


# ── reading and writing ──────────────────────────────────────────────────────────────────────────────────────────────


def from_data(kind: type[T], data: object) -> T:
    """Return `data`, as YAML or JSON has it, as a `kind`.

    Nothing is converted ("3" is not 3, 1 is not true), and unknown keys are refused. Raises Malformed.
    """
    try:
        # As JSON, because pydantic's strict mode takes lists for tuples and mappings for data classes only there.
        text = json.dumps(data, ensure_ascii=False)
        text.encode()
    except UnicodeEncodeError:
        raise Malformed([Problem(_surrogate(data), "half a surrogate pair is no text")]) from None
    try:
        return adapter(kind).validate_json(text, strict=True, extra="forbid")
    except ValidationError as error:
        raise Malformed(problems_in(error, kind, data)) from None


def from_json(kind: type[T], text: str | bytes) -> T:
    """As `from_data`, of a JSON text. Raises Malformed."""
    try:
        return adapter(kind).validate_json(text, strict=True, extra="forbid")
    except ValidationError as error:
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            data = ABSENT
        raise Malformed(problems_in(error, kind, data)) from None


def from_stored(kind: type[T], data: object) -> T:
    """As `from_data`, of data that specgate has written itself: unknown keys are left out. Raises Malformed."""
    try:
        return adapter(kind).validate_python(data)
    except ValidationError as error:
        raise Malformed(problems_in(error, kind, data)) from None
    except (OverflowError, RecursionError) as error:  # an integer for a float field that no float can hold
        raise Malformed([Problem((), f"a value that cannot be read: {error}")]) from None


def to_data(kind: type[T], value: T) -> Any:
    """Return a noun as JSON-ready dicts and lists."""
    return adapter(kind).dump_python(value, mode="json")


def problems_of(kind: type[T], value: T) -> tuple[Problem, ...]:
    """Return the problems of a noun that was built in code, whose constraints nobody has checked."""
    try:
        from_data(kind, to_data(kind, value))
    except Malformed as malformed:
        return malformed.problems
    return ()


_ADAPTERS: dict[Any, TypeAdapter[Any]] = {}


def adapter(kind: type[T]) -> TypeAdapter[T]:
    """Return pydantic's adapter of a noun. Building one takes milliseconds, and the journal writes between blocks."""
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


# ── pydantic's errors in our words ───────────────────────────────────────────────────────────────────────────────────


def problems_in(error: ValidationError, kind: Any, data: object) -> list[Problem]:
    """Return one problem for each wrong key of `data`. Of a union, all that would be right is in one sentence."""
    reasons = dict[KeyPath, list[str]]()
    for each in error.errors(include_url=False):
        key = _key(each["loc"], data, absent=each["type"] in ("missing", "missing_argument"))
        if each["type"] == "too_short" and _long_enough(value_at(data, key), each["ctx"]["min_length"]):
            continue  # pydantic counts only the items without problems of their own
        why = _why(each, kind, key)
        if each["loc"][-1:] == ("[key]",):
            why = f"the key {why}"
        if why not in (known := reasons.setdefault(key, [])):
            known.append(why)
    return [Problem(key, _either(why)) for key, why in reasons.items()]


def _long_enough(value: object, least: int) -> bool:
    return isinstance(value, Sized) and len(value) >= least


def _either(reasons: Sequence[str]) -> str:
    """Several reasons as one: `must be text, or an integer`."""
    return ", or ".join([reasons[0], *(why.removeprefix("must be ") for why in reasons[1:])])


def _key(loc: Sequence[int | str], data: object, *, absent: bool) -> KeyPath:
    """`loc` without the names of a union's members, which are not in `data`."""
    key: KeyPath = ()
    for place, part in enumerate(loc):
        inner = value_at(data, (part,))
        if inner is ABSENT and not (absent and place == len(loc) - 1) and data is not ABSENT:
            continue
        key, data = (*key, part), inner
    return key


LIMITS: Final = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("more than", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("less than", "lt"),
}
"""Type of an error → words for the limit, and its name."""

KINDS: Final = {
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "string": "text",
    "tuple": "a list",
    "list": "a list",
    "path": "a path",
    "none_required": "null",
    "finite_number": "a finite number",
}
"""Beginning of an error's type → words for what is right."""


def _why(error: Any, kind: Any, key: KeyPath) -> str:
    """pydantic's message in our words. `error` is one of its ErrorDetails."""
    context, of = error.get("ctx", {}), error["type"]
    match of:
        case "unexpected_keyword_argument" | "extra_forbidden":
            return f"no such key; {nearest(str(key[-1]), keys_at(kind, key[:-1]))}"
        case "missing" | "missing_argument":
            return "this key is required"
        case "literal_error" | "enum":
            return f"not one of {context['expected']}"
        case "union_tag_invalid":
            return f"not one of {context['expected_tags']}"
        case "value_error":
            return str(context["error"])
        case "dataclass_type" | "dataclass_exact_type" | "dict_type" | "mapping_type":
            known = keys_at(kind, key)
            return "a mapping was expected" + (f"; keys: {', '.join(known)}" if known and of != "dict_type" else "")
        case "string_pattern_mismatch":
            return f"must match {context['pattern']}"
        case "too_short" | "string_too_short":
            return "must not be empty" if context["min_length"] == 1 else f"must have at least {context['min_length']}"
        case "too_long":
            return f"must have at most {context['max_length']}, has {context['actual_length']}"
        case "string_too_long":
            return f"must have at most {context['max_length']} characters"
        case _ if of in LIMITS:
            words, name = LIMITS[of]
            hints = [each.hint for each in get_args(annotation_at(kind, key)) if isinstance(each, Range) and each.hint]
            return "; ".join([f"must be {words} {_number(context[name])}", *hints])
        case _:
            words = next((words for start, words in KINDS.items() if of.startswith(start)), "")
            message = str(error["msg"])
            return f"must be {words}" if words else message.replace("Input should", "must")[:1].lower() + message[1:]


def _number(limit: float) -> str:
    return str(int(limit)) if float(limit).is_integer() else f"{limit:.9f}".rstrip("0")


def nearest(word: str, known: Iterable[str]) -> str:
    """`did you mean 'x'? ` where a known name is close to `word`, followed by all known names."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1)
    return (f"did you mean {close[0]!r}? " if close else "") + f"known: {', '.join(names)}"


def near(word: str, known: Iterable[str]) -> str:
    """` (did you mean 'x'?)` for the known name that is the closest to `word`; empty where none is close."""
    close = difflib.get_close_matches(word, sorted(known), n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""


# ── keys ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def value_at(data: object, key: KeyPath) -> object:
    """Return what `data` has at `key`; ABSENT where it has nothing there."""
    for part in key:
        if isinstance(data, str):
            return ABSENT
        try:
            data = data[part]  # type: ignore[index]  # it may be anything here; a failed lookup means absent
        except (KeyError, IndexError, TypeError):
            return ABSENT
    return data


@cache
def field_types(noun: type) -> Mapping[str, Any]:
    """Return the fields of a noun with their annotations, constraints included."""
    hints = get_type_hints(noun, include_extras=True)
    return {field.name: hints[field.name] for field in fields(noun)} if is_dataclass(noun) else {}


def annotation_at(kind: Any, key: KeyPath) -> Any:
    """Return the annotation of what stands at `key` inside a noun."""
    for part in key:
        noun = noun_in(kind)
        if noun is not None and isinstance(part, str) and part in field_types(noun):
            kind = field_types(noun)[part]
    return kind


def keys_at(kind: Any, key: KeyPath) -> list[str]:
    """Return the keys that a user may write at `key` inside a noun."""
    noun = noun_in(annotation_at(kind, key))
    return [name for name, kind in field_types(noun).items() if not is_filled_in(kind)] if noun else []


def is_filled_in(annotation: object) -> bool:
    """Return whether specgate fills in the field with this annotation."""
    return get_origin(annotation) is Annotated and FILLED_IN in get_args(annotation)[1:]


def noun_in(annotation: Any) -> type | None:
    """Return the first noun in `X`, `X | None`, `tuple[X, ...]`, `Mapping[str, X]` or `Annotated[X, …]`."""
    if isinstance(annotation, type) and is_dataclass(annotation):
        return annotation
    return next((noun for inner in get_args(annotation) if (noun := noun_in(inner)) is not None), None)


def filled_in_keys(kind: Any, data: object, key: KeyPath = ()) -> Iterator[KeyPath]:
    """Yield the keys of `data` that only specgate may set."""
    if isinstance(data, list):
        for place, item in enumerate(data):
            yield from filled_in_keys(kind, item, (*key, place))
    elif isinstance(data, dict) and (noun := noun_in(kind)) is not None:
        known = field_types(noun)
        for name, value in data.items():
            if is_filled_in(known.get(name)):
                yield (*key, name)
            yield from filled_in_keys(known.get(name, kind), value, (*key, name))


def _surrogate(data: object, key: KeyPath = ()) -> KeyPath:
    """The place of the first text with half a surrogate pair; () where it is a key."""
    inner: Iterable[tuple[str | int, object]] = (
        data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    )
    for part, value in inner:
        if isinstance(value, str) and not value.isprintable() and any("\ud800" <= c <= "\udfff" for c in value):
            return (*key, part)
        if place := _surrogate(value, (*key, part)):
            return place
    return ()
