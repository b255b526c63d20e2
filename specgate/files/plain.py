"""Data classes as JSON-ready dicts and lists, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from specgate.errors import InvalidResult

T = TypeVar("T")


_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {}


def _adapter(kind: type[T]) -> TypeAdapter[T]:
    # Cached, because building one takes milliseconds and the journal writes between timed blocks.
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


def to_plain(kind: type[T], value: T) -> Any:
    """A data class of `specgate.core` as JSON-ready dicts and lists."""
    return _adapter(kind).dump_python(value, mode="json", by_alias=True)


def from_plain(kind: type[T], data: object, source: Path) -> T:
    """The inverse of `to_plain`. Raises InvalidResult, which names file and field."""
    try:
        return _adapter(kind).validate_python(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise InvalidResult(f"{source}: {where}: {first['msg']} (value: {str(first['input'])[:80]})") from error
