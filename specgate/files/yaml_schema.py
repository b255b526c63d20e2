"""Check a YAML document against a form, and report every problem of the file at once as `file:line: key: value: …`.

This module imports pydantic, which is slow to import, so only modules that are themselves imported late may import it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from specgate.errors import UsageError
from specgate.files.yamlfile import Document, KeyPath, dotted

SHOWN: Final = 100
"""Problems of one file that are written out."""


class Form(BaseModel):
    """Base of every form: unknown keys are refused and nothing is converted ("3" is not 3, `yes` is not 1)."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


F = TypeVar("F", bound=Form)


class Problem(NamedTuple):
    """`key` is wrong for the reason `why`. The document's value is shown where there is one."""

    key: KeyPath
    why: str


def parse(form: type[F], document: Document, known: Sequence[Problem] = ()) -> F:
    """The document as `form`. Raises UsageError that lists every problem, including those already `known`."""
    try:
        parsed = form.model_validate(document.data)
    except ValidationError as error:
        found = [Problem(tuple(e["loc"]), _why(form, e)) for e in error.errors(include_url=False)]
        raise refusal(document, [*known, *found]) from None
    if known:
        raise refusal(document, known)
    return parsed


def refusal(document: Document, problems: Sequence[Problem]) -> UsageError:
    """One UsageError for all `problems`, in the order of the file. The first `SHOWN` of them are written out."""
    lines = [line for _, line in sorted((document.where(p.key), _line(document, p)) for p in problems)]
    if len(lines) == 1:
        return UsageError(lines[0])
    more = [f"… and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
    return UsageError(f"{document.path}: {len(lines)} problems\n  " + "\n  ".join([*lines[:SHOWN], *more]))


def nearest(word: str, known: Iterable[str]) -> str:
    """`did you mean 'x'? ` where a known name is close to `word`, followed by all known names."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1)
    return (f"did you mean {close[0]!r}? " if close else "") + f"known: {', '.join(names)}"


def _line(document: Document, problem: Problem) -> str:
    mark = document.where(problem.key)
    value = _value(document.data, problem.key)
    shown = "" if value is _ABSENT else f" {_short(value)}:"
    return f"{mark.file}:{mark.line}: {dotted(problem.key) or 'file'}:{shown} {problem.why}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


_ABSENT = object()


def _value(data: object, key: KeyPath) -> object:
    for part in key:
        try:
            data = data[part]  # type: ignore[index]  # the YAML may hold anything here; a failed lookup means absent
        except (KeyError, IndexError, TypeError):
            return _ABSENT
    return data if key else _ABSENT


def _why(form: type[BaseModel], error: Any) -> str:
    """pydantic's message in our words. `error` is one of its ErrorDetails."""
    context = error.get("ctx", {})
    match error["type"]:
        case "extra_forbidden":
            *around, key = error["loc"]
            return f"no such key; {nearest(str(key), _keys_at(form, around))}"
        case "missing":
            return "this key is required"
        case "literal_error":
            return f"not one of {context['expected']}"
        case "value_error":
            return str(context["error"])
        case "model_type" | "model_attributes_type":
            return f"a mapping was expected; keys: {', '.join(_keys_at(form, error['loc']))}"
        case _:
            return str(error["msg"][0].lower() + error["msg"][1:])


def _keys_at(form: type[BaseModel], loc: Sequence[int | str]) -> list[str]:
    """The keys that are known at the place `loc` inside `form`."""
    for part in loc:
        if isinstance(part, str) and (field := _field_of(form, part)) is not None:
            form = _form_in(form.model_fields[field].annotation) or form
    return [field.alias or name for name, field in form.model_fields.items()]


def _field_of(form: type[BaseModel], key: str) -> str | None:
    """The field with this key; None where the key is a name that the file gives, in a mapping of forms."""
    return next((name for name, field in form.model_fields.items() if (field.alias or name) == key), None)


def _form_in(annotation: object) -> type[BaseModel] | None:
    """The form inside `X`, `X | None`, `list[X]` or `Annotated[X, …]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((f for a in get_args(annotation) if (f := _form_in(a)) is not None), None)
