"""Tables of the keys and flags that decide the terms of a speculative config, by the type of their values.

A name is a key and, with dashes, a flag; what stands behind it after commas are other spellings of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, cast, get_args

Kind = Literal["count", "number", "text", "switch", "flag", "off", "object", "list", "any", "setting"]
"""The type of a value. `flag` and `off` take no value on a command line and switch something on or off; in a mapping
they are true or false. `setting`: a JSON object, or a text of `key=value`.
"""


@dataclass(frozen=True, slots=True)
class Known:
    """One key. `flags`: its spellings on a command line."""

    key: str
    flags: tuple[str, ...]
    kind: Kind


class Table(dict[str, Known]):
    """Key → what is known of it. `by_flag`: the same by every spelling of a flag."""

    def __init__(self, **names: str) -> None:
        assert names.keys() <= {*get_args(Kind)}, names.keys()
        rows = [known(name, cast(Kind, kind)) for kind, text in names.items() for name in text.split()]
        super().__init__({row.key: row for row in rows})
        self.by_flag: Final = {flag: row for row in rows for flag in row.flags}


def known(name: str, kind: Kind) -> Known:
    """Return the row of one name with its other spellings."""
    words = name.split(",")
    flags = tuple(word if word.startswith("-") else f"--{word.replace('_', '-')}" for word in words)
    return Known(words[0].lstrip("-").replace("-", "_"), flags, kind)
