"""The JSON document of a Chrome trace: its events one by one.

The document is an object with a list `traceEvents`, or such a list alone, whose last bracket may be missing ("JSON
object format", "JSON array format"). Control characters in a name, NaN and a comma too many are no fault. A text that
is no JSON is refused with its place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final, Protocol

from specgate.analysis.traces.recording import Malformed

LONGEST_VALUE: Final = 16 << 20
"""Characters of the longest event, or of the values beside the events."""
PIECE: Final = 1 << 20
"""Characters that are read at once."""
NEAR: Final = 60
"""Characters that an error shows of the text."""
LONGEST_WORD: Final = 12
"""Characters of the longest escape, two of `\\uXXXX`: within it, an error may be the end of what was read."""

_DECODER: Final = json.JSONDecoder(strict=False, parse_constant=lambda name: None)
_SPACE: Final = re.compile(r"[ \t\r\n]*")


class Text(Protocol):
    """A stream of characters."""

    def read(self, size: int, /) -> str: ...


class TraceDocument:
    """A trace document that is read once, from its beginning to its end.

    `facts`: the values beside the list of events, once `events` has been read to its end.
    `unclosed`: True if the list has no last bracket.
    """

    def __init__(self, text: Text) -> None:
        self.facts: dict[str, Any] = {}
        self.unclosed = False
        self._text = text
        self._buffer, self._at, self._ended = "", 0, False
        self._events = 0

    def events(self) -> Iterator[Any]:
        """Yield every event. Raises Malformed for a text that is no trace, and for one that ends too early."""
        if self._peek() == "[":
            yield from self._list(within=False)
        elif self._peek() == "{":
            yield from self._object()
        else:
            raise self._malformed("neither an object nor a list begins")
        if self._peek():
            raise self._malformed("there is text behind the document")

    def _object(self) -> Iterator[Any]:
        self._at += 1
        keys: list[str] = []
        while (char := self._peek()) != "}":
            if char == ",":
                self._at += 1
                continue
            key = self._fact()
            if not isinstance(key, str) or self._peek() != ":":
                raise self._malformed("a key and a colon are needed")
            self._at += 1
            if key == "traceEvents":
                if self._peek() != "[" or key in keys:
                    raise self._malformed("traceEvents " + ("is there twice" if key in keys else "is not a list"))
                yield from self._list(within=True)
            else:
                self._peek()
                self.facts[key] = self._fact()
            keys.append(key)
        self._at += 1
        if "traceEvents" not in keys:
            raise self._malformed(f"no list traceEvents among the keys {', '.join(keys) or '(none)'}")

    def _list(self, within: bool) -> Iterator[Any]:
        self._at += 1
        while (char := self._peek()) != "]":
            if char == ",":
                self._at += 1
            elif char:
                self._events += 1
                yield self._fact()
            elif within:
                raise self._malformed("the file ends within the list of events: it is cut off")
            else:
                self.unclosed = True
                return
        self._at += 1

    def _fact(self) -> Any:
        while True:
            try:
                return self._value()
            except Malformed:
                raise
            except ValueError as error:
                why = self._near(error)
                if self._broken(error):
                    raise self._malformed(f"no JSON: {why}") from error
                if len(self._buffer) - self._at > LONGEST_VALUE:
                    raise self._malformed(f"one value of more than {LONGEST_VALUE:,} characters") from None
                if not self._more():
                    raise self._malformed(f"cut off here, or no JSON: {why}") from error

    def _broken(self, error: ValueError) -> bool:
        """True where more text cannot mend what is wrong: it lies before the end, and no string is open there."""
        at = getattr(error, "pos", len(self._buffer))
        return at < len(self._buffer) - LONGEST_WORD and not str(error).startswith("Unterminated string")

    def _value(self) -> Any:
        """The JSON value that begins here. Raises ValueError where none does, or where the text read so far ends."""
        try:
            value, end = _DECODER.raw_decode(self._buffer, self._at)
        except RecursionError:
            raise self._malformed("too many lists and objects within each other") from None
        if end == len(self._buffer) and not isinstance(value, str | list | dict) and self._more():
            return self._value()  # a number may go on
        if end - self._at > LONGEST_VALUE:
            raise self._malformed(f"one value of more than {LONGEST_VALUE:,} characters")
        self._at = end
        return value

    def _peek(self) -> str:
        """The next character that is no space; "" at the end."""
        while True:
            match = _SPACE.match(self._buffer, self._at)
            self._at = match.end() if match else self._at
            if self._at < len(self._buffer):
                return self._buffer[self._at]
            if not self._more():
                return ""

    def _more(self) -> bool:
        """Read another piece. False at the end of the text."""
        piece = "" if self._ended else self._text.read(PIECE)
        self._ended = not piece
        self._buffer, self._at = self._buffer[self._at :] + piece, 0
        return bool(piece)

    def _near(self, error: ValueError) -> str:
        """Reason of an error, and the text around it."""
        if not isinstance(error, json.JSONDecodeError):
            return str(error).partition(" for ")[0]  # an integer of thousands of digits
        begin = max(self._at, error.pos - NEAR // 2)
        return f"{error.msg} near {' '.join(self._buffer[begin : begin + NEAR].split())}"

    def _malformed(self, why: str) -> Malformed:
        return Malformed(f"after {self._events:,} events: {why}")
