"""The events of a Chrome trace, one by one: a trace of a few seconds has hundreds of megabytes.

The document is an object with a list `traceEvents`, or such a list alone ("JSON object format", "JSON array format").
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Final, Protocol

import ijson

from specgate.analysis.traces.recording import Malformed

LONGEST_VALUE: Final = 16 << 20
"""Bytes of the longest event, or of the values beside the events."""

MOST_DIGITS: Final = 2_000
TO_ZEROS: Final = bytes.maketrans(b"123456789", b"0" * 9)
NO_NUMBERS: Final = re.compile(rb"(\A|[:\[,])(\s*)(?:NaN|-?Infinity)(?=\s*[,\]}])")
"""Literals that Python's `json` writes and JSON does not have. They are read as null."""
PLAIN: Final = frozenset({str, int})
"""Types of values that are taken as the parser gives them."""

Tokens = Iterator[tuple[str, Any]]
"""Pairs of a kind and a value, as `ijson.basic_parse` yields them."""


class Text(Protocol):
    """A stream of characters."""

    def read(self, size: int, /) -> str: ...


class TraceDocument:
    """A trace document that is read once, from its beginning to its end.

    `facts`: the values beside the list of events, once `events` has been read to its end.
    """

    def __init__(self, text: Text) -> None:
        self.facts: dict[str, Any] = {}
        self._text = text
        self._events = self._bytes = 0

    def events(self) -> Iterator[Any]:
        """Yield every event. Raises Malformed for a text that is no trace, and for one that ends too early."""
        tokens: Tokens = ijson.basic_parse(self)
        try:
            if next(tokens)[0] == "start_array":
                yield from self._list(tokens)
            else:
                yield from self._object(tokens)
            next(tokens, None)  # refuses text behind the document
        except RecursionError:
            raise self._malformed("too many lists and objects within each other") from None
        except ijson.JSONError as error:
            why, near = [" ".join(line.split()) for line in (*str(error).splitlines(), "")[:2]]
            raise self._malformed(why.rstrip(".") + f", near {near}" * bool(near)) from error
        except ArithmeticError:
            raise self._malformed("a number with too large an exponent") from None

    def read(self, size: int, /) -> bytes:
        """Return the next piece for the parser. Raises Malformed for a value that is too long."""
        if self._bytes > LONGEST_VALUE:
            raise self._malformed(f"one value of more than {LONGEST_VALUE:,} bytes")
        text = self._text.read(size)
        while text and text[-1] not in ",]}" and len(text) < 2 * size and (more := self._text.read(1)):
            text += more  # so that no literal is cut in two
        piece = text.encode()
        self._bytes += len(piece)
        if b"NaN" in piece or b"Infinity" in piece:
            piece = NO_NUMBERS.sub(rb"\1\2null", piece)
        # Of an integer that Python refuses for its length (4,300 digits), ijson 3.6 makes a crash of the process.
        if b"0" * MOST_DIGITS in piece.translate(TO_ZEROS):
            raise self._malformed(f"a number of more than {MOST_DIGITS:,} digits")
        return piece

    def _object(self, tokens: Tokens) -> Iterator[Any]:
        keys = []
        for kind, key in tokens:
            if kind == "end_map":
                break
            keys.append(key)
            kind, value = next(tokens)
            if key == "traceEvents" and keys.count(key) == 1:
                if kind != "start_array":
                    raise self._malformed("traceEvents is not a list")
                yield from self._list(tokens)
            else:
                self.facts[key] = value_of(tokens, kind, value)
        if "traceEvents" not in keys:
            raise self._malformed(f"no list traceEvents among the keys {', '.join(keys) or '(none)'}")

    def _list(self, tokens: Tokens) -> Iterator[Any]:
        for event in entries(tokens):
            self._events += 1
            self._bytes = 0
            yield event

    def _malformed(self, why: str) -> Malformed:
        return Malformed(f"after {self._events:,} events: {why}")


def value_of(tokens: Tokens, kind: str, value: Any) -> Any:
    """Return the value that begins with a token of this kind and value."""
    if kind == "start_map":
        members = {}
        for kind, key in tokens:
            if kind == "end_map":
                break
            kind, value = next(tokens)
            # A large trace has a hundred million values, nearly all of them texts and integers: no call for these.
            members[key] = value if type(value) in PLAIN else value_of(tokens, kind, value)
        return members
    if kind == "start_array":
        return [*entries(tokens)]
    return float(value) if isinstance(value, Decimal) else value


def entries(tokens: Tokens) -> Iterator[Any]:
    """Yield each entry of the list whose beginning was the last token."""
    for kind, value in tokens:
        if kind == "end_array":
            return
        yield value_of(tokens, kind, value)
