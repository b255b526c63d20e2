"""Keys and flags that decide the terms of a speculative config, with the releases that have them.

    vllm.py, sglang.py, trtllm.py, lmdeploy.py, llamacpp.py     one table per engine

A line of a table: names (the first is the key), the type of the value, the first release that has it, the last one
(`-`: the newest that the docstring names still has it), and `= VALUE` where the flag takes no value and has one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, cast, get_args

Kind = Literal["count", "number", "text", "switch", "flag", "off", "object", "list", "any", "setting"]
"""The type of a value. `flag` and `off` take no value on a command line and switch something on or off; in a mapping
they are true or false. `setting`: a JSON object, or a text of `key=value`.
"""


@dataclass(frozen=True, slots=True)
class Known:
    """One key. `flags`: its spellings on a command line. `since`, `until`: first and last release that has it; "" where
    that is not known, or where the newest release still has it.
    """

    key: str
    flags: tuple[str, ...]
    kind: Kind
    since: str
    until: str

    @property
    def releases(self) -> str:
        """The releases in words."""
        if self.until:
            return f"{self.since} to {self.until}" if self.since else f"until {self.until}"
        return f"since {self.since}" if self.since else ""


class Table(Mapping[str, Known]):
    """Key → what is known of it. `shortened`: the command line of the engine takes a flag's beginning for it."""

    def __init__(self, lines: str, *, shortened: bool = False) -> None:
        self.shortened: Final = shortened
        rows = [row(line) for line in lines.splitlines() if line.strip()]
        self.rows: Final = {known.key: known for known in reversed(rows)}
        self.by_flag: Final = {flag: known for known in rows for flag in known.flags}

    def find(self, flag: str) -> Known | None:
        """The row of a flag, or of the one flag about speculation that begins with it, where these may be shortened.

        Of other flags, the table holds only those that decide a term.
        """
        if flag in self.by_flag or not self.shortened or not flag.startswith("--spec"):
            return self.by_flag.get(flag)
        rows = {known.key: known for full, known in self.by_flag.items() if full.startswith(flag)}
        return next(iter(rows.values())) if len(rows) == 1 else None

    def __getitem__(self, key: str) -> Known:
        return self.rows[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)


def row(line: str) -> Known:
    """One line of a table."""
    names, kind, since, until = line.split()
    assert kind in get_args(Kind), line
    first, *rest = names.split(",")
    words = [first, *rest]
    flags = tuple(word if word.startswith("-") else f"--{word.replace('_', '-')}" for word in words)
    key = first.lstrip("-").replace("-", "_")
    return Known(key, flags, cast(Kind, kind), since.strip("?"), until.strip("-"))


def order(release: str) -> tuple[tuple[int, ...], int]:
    """Sort key of a release such as 0.5.12.post1, 1.3.0rc4 or 2026-05."""
    match = re.match(r"(\d+(?:[.-]\d+)*)(rc\d+|a\d+)?(?:\.post(\d+))?", release)
    if match is None:
        return ((), 0)
    numbers = tuple(int(n) for n in re.split(r"[.-]", match[1]))
    before = int(match[2].lstrip("rca")) - 1000 if match[2] else 0
    return (*numbers, *(0,) * (4 - len(numbers))), before + int(match[3] or 0)


def window(used: Iterable[Known]) -> tuple[Known | None, Known | None]:
    """The keys that bound the releases in which all of `used` exist: the latest `since`, the earliest `until`."""
    rows = list(used)
    since = max((k for k in rows if k.since), key=lambda k: order(k.since), default=None)
    until = min((k for k in rows if k.until), key=lambda k: order(k.until), default=None)
    return since, until
