"""The events of a large JSON document, one by one: at no time is more held than a piece of the text.

A trace of a few seconds has hundreds of megabytes. It is an object with a list `traceEvents`, or such a list alone
(Chrome's "JSON object format" and "JSON array format").
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final, Protocol

from specgate.files.json_text import shown

PIECE: Final = 1 << 20
"""Characters that are read at a time."""
LONGEST_VALUE: Final = 16 << 20
"""Characters of the longest event, or of the longest value beside the events."""
_ENDS: Final = tuple(" \t\r\n,:]}")
_SPACE: Final = re.compile(r"[ \t\r\n]*")


class Text(Protocol):
    """What characters are read from."""

    def read(self, size: int, /) -> str: ...


class Malformed(ValueError):
    """The document is no trace: what is wrong, and where, in characters from its beginning."""


class TraceDocument:
    """A trace document that is read once, from its beginning to its end.

    `facts`: the values beside the list of events, once `events` has been read to its end.
    """

    def __init__(self, text: Text) -> None:
        self.facts: dict[str, Any] = {}
        self._text = text
        self._held = ""
        self._at = self._before = 0
        self._whole = False
        self._decoder = json.JSONDecoder()

    def events(self) -> Iterator[Any]:
        """Every event. Raises Malformed where the text is no trace, and where it ends too early."""
        if self._peek() == "[":
            yield from self._list()
        elif self._peek() == "{":
            yield from self._object()
        else:
            raise self._malformed("a trace begins with { or [")
        if self._peek():
            raise self._malformed("more text follows the document")

    def _object(self) -> Iterator[Any]:
        found = False
        for _ in self._entries("{", "}"):
            key = self._value()
            if not isinstance(key, str):
                raise self._malformed(f"a key is a text in quotation marks, not {shown(key)}")
            self._expect(":")
            if key == "traceEvents" and not found:
                found = True
                if self._peek() != "[":
                    raise self._malformed("traceEvents is not a list")
                yield from self._list()
            else:
                self.facts[key] = self._value()
        if not found:
            raise self._malformed(f"no list traceEvents among the keys {', '.join(self.facts) or '(none)'}")

    def _list(self) -> Iterator[Any]:
        for _ in self._entries("[", "]"):
            yield self._value()

    def _entries(self, opening: str, closing: str) -> Iterator[None]:
        """Once for every entry between two brackets; the caller reads it."""
        self._expect(opening)
        if self._peek() == closing:
            self._expect(closing)
            return
        while True:
            yield
            if self._peek() != ",":
                self._expect(closing)
                return
            self._expect(",")

    def _value(self) -> Any:
        """The value that begins here. More text is taken until it is whole."""
        self._peek()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._held, self._at)
            except (ValueError, RecursionError) as error:
                if not self._more():
                    raise self._malformed(f"no value: {type(error).__name__}") from error
                continue
            # A number may go on in the next piece: 0 of 0.5, or 1 of 1e9.
            if self._held[end : end + 1] in _ENDS or not self._more():
                self._at = end
                return value

    def _expect(self, character: str) -> None:
        if self._peek() != character:
            raise self._malformed(f"{character} is missing")
        self._at += 1

    def _peek(self) -> str:
        """The next character that is no space; "" at the end."""
        while True:
            match = _SPACE.match(self._held, self._at)
            self._at = match.end() if match else self._at
            if self._at < len(self._held):
                return self._held[self._at]
            if not self._more():
                return ""

    def _more(self) -> bool:
        """Take in another piece; False at the end of the text. Raises Malformed for a value that is too long."""
        if self._whole:
            return False
        if len(self._held) - self._at > LONGEST_VALUE:
            raise self._malformed(f"one value of more than {LONGEST_VALUE:,} characters")
        piece = self._text.read(PIECE)
        self._whole = not piece
        self._before += self._at
        self._held, self._at = self._held[self._at :] + piece, 0
        return not self._whole

    def _malformed(self, why: str) -> Malformed:
        return Malformed(f"character {self._before + self._at + 1:,}: {why}")
