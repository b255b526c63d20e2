"""Flags of a command line and keys of a mapping, read by a table of what is known. Errors name key and value."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final, Literal

from specgate.errors import UsageError
from specgate.files.json_text import parse_json, shown

Kind = Literal["count", "number", "text", "switch", "flag", "off", "object", "list"]
"""The type of a value. `flag` and `off` are flags without a value, which switch something on or off."""
NEEDED: Final[Mapping[str, str]] = {
    "count": "an integer of at least 0",
    "number": "a number",
    "text": "a text",
    "switch": "true or false",
    "object": "an object",
    "list": "a list",
}


@dataclass(frozen=True, slots=True)
class Given:
    """Parsed flags or keys: key → value, the name under which each was written, and notes on unknown ones."""

    values: Mapping[str, object]
    names: Mapping[str, str]
    notes: tuple[str, ...] = ()

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None


def from_mapping(values: Mapping[str, object], known: Mapping[str, Kind], where: str) -> Given:
    """The `known` keys of `values`, each of its type. A null counts as an absent key.

    Raises UsageError with every value of the wrong type.
    """
    values_by_key = {
        key: checked(value, known[key]) for key, value in values.items() if key in known and value is not None
    }
    if wrong := [
        f"{key} = {shown(values[key])}: {NEEDED[known[key]]} is needed" for key, v in values_by_key.items() if v is NO
    ]:
        raise UsageError(f"{where}: {'; '.join(wrong)}")
    notes = tuple(unknown(key, known) for key in values if key not in known)
    return Given(values_by_key, {key: key for key in values_by_key}, notes)


def from_argv(argv: Sequence[str], known: Mapping[str, tuple[str, Kind]], about: tuple[str, ...], where: str) -> Given:
    """The `known` flags of a command line, as flag → (key, type). The last of several wins, as in the engines.

    Flags that begin with one of `about` and are not known are noted. All others are not about speculation. Raises
    UsageError for a flag without its value, and for one of the wrong type.
    """
    values: dict[str, object] = {}
    names: dict[str, str] = {}
    notes: list[str] = []
    words = iter(enumerate(argv))
    for at, word in words:
        flag, equals, text = word.partition("=")
        flag = f"--{flag[2:].replace('_', '-')}" if flag.startswith("--") else flag
        if flag not in known:
            if flag.startswith(about):
                notes.append(unknown(flag, known))
            continue
        key, kind = known[flag]
        names[key] = flag
        if kind in ("flag", "off"):
            values[key] = kind == "flag"
            continue
        if not equals:
            if at + 1 >= len(argv):
                raise UsageError(f"{where}: {flag} has no value", hint=f"{NEEDED[kind]} is needed")
            _, text = next(words)
        value = checked(parsed(text, kind), kind)
        if value is NO:
            raise UsageError(f"{where}: {flag} = {shown(text)}: {NEEDED[kind]} is needed")
        values[key] = value
    return Given(values, names, tuple(dict.fromkeys(notes)))


NO: Final = object()
"""Stands for a value of the wrong type."""


def checked(value: object, kind: Kind) -> object:
    """`value`, or NO where it is not of that type."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    fits = {
        "count": number and isinstance(value, int) and value >= 0,
        "number": number,
        "text": isinstance(value, str),
        "switch": isinstance(value, bool),
        "object": isinstance(value, Mapping),
        "list": isinstance(value, list | tuple),
    }
    return value if fits[kind] else NO


def parsed(text: str, kind: Kind) -> object:
    """The value of a word on a command line; NO where it cannot be read."""
    if kind == "text":
        return text
    try:
        if kind == "switch":
            return {"true": True, "false": False, "1": True, "0": False}.get(text.lower(), NO)
        return parse_json(text)
    except ValueError:
        return NO


def unknown(key: str, known: Mapping[str, object]) -> str:
    """A sentence about a key or flag that nobody knows."""
    near = get_close_matches(key, known, 1)
    name = key if key.isprintable() else ascii(key)
    return f"unknown key {name[:80]}" + (f" (did you mean {near[0]}?)" if near else "")


def dotted(argv: Sequence[str], flag: str, where: str) -> Iterator[tuple[str, object]]:
    """(key, value) of flags such as `--speculative-config.method eagle3`, which spell out one key of an object."""
    words = iter(argv)
    for word in words:
        name, equals, inline = word.partition("=")
        if name.replace("_", "-").startswith(f"{flag}."):
            key = name[len(flag) + 1 :].replace("-", "_")
            text = inline if equals else next(words, None)
            if text is None:
                raise UsageError(f"{where}: {name} has no value")
            try:
                yield key, json.loads(text)
            except ValueError:
                yield key, text
