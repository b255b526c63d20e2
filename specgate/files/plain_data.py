"""Data classes as JSON-ready dicts and lists, and back from what specgate has stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from specgate.contract import reading
from specgate.errors import InvalidResult
from specgate.files.json_text import shown

T = TypeVar("T")


def to_plain(kind: type[T], value: T) -> Any:
    """A data class of `specgate.contract` as JSON-ready dicts and lists."""
    return reading.to_data(kind, value)


def from_plain(kind: type[T], data: object, source: Path) -> T:
    """The inverse of `to_plain`. Raises InvalidResult, which names file and field."""
    try:
        return reading.from_stored(kind, data)
    except reading.Malformed as malformed:
        first = malformed.problems[0]
        value = reading.value_at(data, first.key)
        of_value = "" if value is reading.ABSENT else f" (value: {shown(value)})"
        raise InvalidResult(f"{source}: {reading.dotted(first.key) or 'file'}: {first.why}{of_value}") from malformed
