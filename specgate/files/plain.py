"""Data classes as JSON-ready dicts and lists, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from specgate.errors import InvalidResult
from specgate.files.json_text import shown

T = TypeVar("T")


_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {}


def _adapter(kind: type[T]) -> TypeAdapter[T]:
    # Cached, because building one takes milliseconds and the journal writes between timed blocks.
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


def to_plain(kind: type[T], value: T) -> Any:
    """A data class of `specgate.contract` as JSON-ready dicts and lists."""
    return _adapter(kind).dump_python(value, mode="json", by_alias=True)


def from_plain(kind: type[T], data: object, source: Path) -> T:
    """The inverse of `to_plain`. Raises InvalidResult, which names file and field."""
    try:
        return _adapter(kind).validate_python(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(part if isinstance(part, str) and part.isprintable() else repr(part) for part in first["loc"])
        raise InvalidResult(f"{source}: {where}: {first['msg']} (value: {shown(first['input'])})") from error
    except (OverflowError, RecursionError) as error:  # an integer for a float field that no float can hold
        raise InvalidResult(f"{source}: a value that cannot be read: {error}") from error
