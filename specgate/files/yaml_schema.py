"""A noun from a YAML document, and every problem of the file at once as `file:line: key: value: …`.

This module imports pydantic, which is slow to import, so only modules that are themselves imported late may import it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

from specgate.contract.reading import (
    ABSENT,
    Malformed,
    Problem,
    filled_in_keys,
    from_data,
    keys_at,
    nearest,
    to_data,
    value_at,
)
from specgate.contract.types import KeyPath, dotted, shortened
from specgate.errors import UsageError
from specgate.files.yamlfile import Document

SHOWN: Final = 100
"""Problems of one file that are written out."""

T = TypeVar("T")


def parse(
    kind: type[T],
    document: Document,
    schema: str | None = None,
    known: Sequence[Problem] = (),
    filled_in: Mapping[str, object] | None = None,
    other_keys: Sequence[str] = (),
) -> T:
    """Return the document as a `kind`. Raises UsageError that lists every problem, including those already `known`.

    `schema`: what the key `schema` must say; None where such files have no such key.
    `filled_in`: fields that no file sets (`contract.types.FILLED_IN`), as JSON has them.
    `other_keys`: keys of such files that were read before.
    """
    data, problems = dict(document.data), list(known)
    if schema is not None:
        stated = data.pop("schema", ABSENT)
        if stated is ABSENT:
            problems.append(Problem(("schema",), f"this key is required: schema: {schema}"))
        elif stated != schema:
            problems.append(Problem(("schema",), f"not one of {schema!r}"))
    known_keys = [*keys_at(kind, ()), *other_keys, *(["schema"] if schema else [])]
    for key in [key for key in data if key not in known_keys]:
        problems.append(Problem((key,), f"no such key; {nearest(key, known_keys)}"))
        del data[key]
    for path in filled_in_keys(kind, data):
        problems.append(Problem(path, f"no such key; {nearest(str(path[-1]), keys_at(kind, path[:-1]))}"))
    try:
        noun = from_data(kind, {**data, **(filled_in or {})})
    except Malformed as malformed:
        raise refusal(document, [*problems, *malformed.problems]) from None
    if problems:
        raise refusal(document, problems)
    return noun


def to_document(kind: type[T], noun: T) -> dict[str, Any]:
    """Return a noun as a file says it: without what specgate fills in, and without what is empty or null."""
    plain: dict[str, Any] = to_data(kind, noun)
    written: dict[str, Any] = _written(plain, set(filled_in_keys(kind, plain)), ())
    return written


def _written(value: Any, filled_in: set[KeyPath], key: KeyPath) -> Any:
    if isinstance(value, list):
        return [_written(item, filled_in, (*key, place)) for place, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    inner = {name: _written(v, filled_in, (*key, name)) for name, v in value.items() if (*key, name) not in filled_in}
    return {name: v for name, v in inner.items() if v is not None and v != [] and v != {}}


def refusal(document: Document, problems: Sequence[Problem]) -> UsageError:
    """One UsageError for all `problems`, in the order of the file. The first `SHOWN` of them are written out."""
    lines = [line for _, line in sorted((document.where(p.key), _line(document, p)) for p in problems)]
    if len(lines) == 1:
        return UsageError(lines[0])
    more = [f"… and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
    return UsageError(f"{document.path}: {len(lines)} problems\n  " + "\n  ".join([*lines[:SHOWN], *more]))


def _line(document: Document, problem: Problem) -> str:
    mark = document.where(problem.key)
    value: Any = value_at(document.data, problem.key) if problem.key else ABSENT
    text = "" if value is ABSENT else f" {shortened(repr(value))}:"
    return f"{mark.file}:{mark.line}: {dotted(problem.key) or 'file'}:{text} {problem.why}"
