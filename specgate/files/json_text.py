"""JSON that others may have written: read within bounds, and without what Python's reader adds to the format.

Python's reader takes NaN and Infinity for numbers, and lets 1e999 become infinity; JSON (RFC 8259) has neither. Text
with half a surrogate pair could never be printed or written again, and deep nesting ends in a RecursionError in the
reader or in whoever walks through its result.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Final, TypeVar

from specgate.contract import reading
from specgate.contract.types import dotted
from specgate.errors import InvalidResult

LARGEST: Final = 1 << 30
"""Bytes of a file."""
DEEPEST: Final = 64
"""Objects and lists inside each other. No file that specgate reads has more than 12 levels."""


def read_bytes(file: Path, largest: int = LARGEST) -> bytes:
    """The content of `file`.

    Raises OSError where it cannot be read, ValueError where it has more than `largest` bytes or `file` is no name that
    a file can have.
    """
    with file.open("rb") as stream:
        content = stream.read(largest + 1)
    if len(content) > largest:
        raise ValueError(f"more than {largest} bytes")
    return content


def parse_json(text: str | bytes, *, constants: bool = False) -> object:
    """The value of a JSON text. Raises ValueError for anything else, and for what no reader should have to bear: other
    encodings than UTF-8, numbers that are not finite, text that is not Unicode, more than `DEEPEST` levels.

    `constants`: NaN and Infinity, which Python's writer has, are None.
    """
    refuse = (lambda name: None) if constants else _refuse_constant
    try:
        words = text.decode("utf-8") if isinstance(text, bytes) else text
        value: object = json.loads(words, parse_constant=refuse, parse_float=_finite)
    except RecursionError:
        raise ValueError(f"more than {DEEPEST} levels deep") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg}: {_place(words.rstrip(), error.pos)}") from None
    # Cheap signs that a closer look is needed: most texts hold neither.
    if words.count("[") + words.count("{") > DEEPEST:
        _check_depth(value)
    if "\\u" in words:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"half a surrogate pair: {error.object[error.start]!r}") from None
    return value


def read_json(file: Path, largest: int = LARGEST) -> object:
    """The value in `file`. Raises what `read_bytes` and `parse_json` raise."""
    return parse_json(read_bytes(file, largest))


def shown(value: object, longest: int = 80) -> str:
    """`value` for an error message: on one line, without control characters, and short."""
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python writes
        return "a number of thousands of digits"
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _place(text: str, at: int) -> str:
    """Line and column of the character at `at`, or of the last one before it. A text of one line may be one of many,
    whose number the caller knows.
    """
    at = min(at, len(text))
    line = f"line {text[:at].count(chr(10)) + 1}, " if "\n" in text else ""
    return f"{line}column {at - text[:at].rfind(chr(10))}"


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number of JSON")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:40]} is too large for a float")
    return number


def _check_depth(value: object) -> None:
    level = [value]
    for _ in range(DEEPEST):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    raise ValueError(f"more than {DEEPEST} levels deep")


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
        raise InvalidResult(f"{source}: {dotted(first.key) or 'file'}: {first.why}{of_value}") from malformed
