r"""Print: the one door to standard output and standard error.

Text of foreign origin (errors, names of files, logs, what a model or a server said) may hold a credential or a sequence
that a terminal obeys. Here credentials are masked and control characters are shown as escapes (\x1b). Colours of our
own stay.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TextIO

import click

from specgate.redaction import masked, masked_data, visible, visible_but_colours, visible_json

if TYPE_CHECKING:
    from rich.console import Console


SLOW_S: Final = 3.0
"""Silence on a terminal after which a reader wonders whether anything goes on."""


def echo(text: str = "", *, err: bool = False, nl: bool = True, coloured: bool = False) -> None:
    """Print `text`. With `coloured` it may set colours and styles, as a report for a terminal does, but no more."""
    safe = (visible_but_colours if coloured else visible)(masked(text))
    click.echo(safe, err=err, nl=nl)


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """Print `text` on standard error if what is within takes longer than `SLOW_S`."""
    timer = threading.Timer(SLOW_S, echo, (text,), {"err": True})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def echo_json(data: Mapping[str, object] | Sequence[object], *, indent: int = 1) -> None:
    """Print JSON data, which stays JSON."""
    click.echo(visible_json(json.dumps(masked_data(data), indent=indent, ensure_ascii=False)))


def console(**options: Any) -> Console:
    """A rich console on standard output. Strings are printed as they are: neither markup nor emoji codes."""
    from rich.console import Console

    return Console(file=_Guarded(sys.stdout), markup=False, emoji=False, **options)  # type: ignore[arg-type]


class _Guarded:
    """A text stream behind the same door."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(visible_but_colours(masked(text)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
