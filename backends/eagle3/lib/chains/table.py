"""How many tokens to draft by how many requests run at a time: `1:5,4:3,16:1`, or a file that has such a table.

Up to so many rows a step costs what one row costs; beyond, every draft has its price. So the best chain is the shorter,
the more requests share a step. `specgate engine tune drafts` makes the file from measured runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from specgate.errors import UsageError
from specgate.files.yamlfile import load

SCHEMA: Final = "specgate.drafts-by-batch/v1"
KEYS: Final = ("schema", "drafts", "measured")
LONGEST: Final = 4096
LONGEST_NUMBER: Final = 9
"""Digits."""
HINT: Final = "REQUESTS:DRAFTS,…, such as 1:5,4:3,16:1, or a file of `specgate engine tune drafts`"


@dataclass(frozen=True, slots=True)
class ChainTable:
    """`rows`: (requests, most draft tokens), ascending by requests. A row holds from so many requests on."""

    rows: tuple[tuple[int, int], ...]

    def most(self, running: int) -> int:
        """The most draft tokens while `running` requests run; below the first row, that row's."""
        found = [drafts for requests, drafts in self.rows if requests <= running]
        return found[-1] if found else self.rows[0][1]

    def __str__(self) -> str:
        return ",".join(f"{requests}:{drafts}" for requests, drafts in self.rows)


def table_of(text: str, where: str) -> ChainTable:
    """The table that `text` is, or that the file of this name has. Raises UsageError, which names `where`."""
    file = Path(text).expanduser()
    if file.suffix in (".yaml", ".yml"):
        return table_in(file)
    rows = []
    for part in text.split(","):
        requests, colon, drafts = part.partition(":")
        if not (colon and is_number(requests.strip()) and is_number(drafts.strip())):
            raise UsageError(f"{where} = {text[:80]!r}: {part[:40]!r} is no pair of numbers", hint=HINT)
        rows.append((int(requests), int(drafts)))
    return checked(rows, f"{where} = {text[:80]!r}")


def is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= LONGEST_NUMBER


def table_in(file: Path) -> ChainTable:
    """The table of a file. Raises UsageError, with file and key."""
    found = load(file).data
    if found.get("schema") != SCHEMA:
        raise UsageError(f"{file}: schema: not {SCHEMA}", hint="a file of `specgate engine tune drafts`")
    if unknown := [key for key in found if key not in KEYS]:
        raise UsageError(f"{file}: {unknown[0]}: no such key", hint=f"known: {', '.join(KEYS)}")
    rows = found.get("drafts")
    if not isinstance(rows, list) or not all(map(is_row, rows)):
        raise UsageError(f"{file}: drafts: not a list of rows", hint="drafts: [{requests: 1, drafts: 5}, …]")
    return checked([(row["requests"], row["drafts"]) for row in rows], f"{file}: drafts")


def is_row(row: object) -> bool:
    return isinstance(row, dict) and {*row} == {"requests", "drafts"} and all(type(n) is int for n in row.values())


def checked(rows: list[tuple[int, int]], where: str) -> ChainTable:
    ordered = sorted(rows)
    if not ordered or len({requests for requests, _ in ordered}) < len(ordered):
        raise UsageError(f"{where}: {'a number of requests twice' if ordered else 'no row'}", hint=HINT)
    for requests, drafts in ordered:
        if not 1 <= requests <= LONGEST or not 1 <= drafts <= LONGEST:
            raise UsageError(f"{where}: {requests}:{drafts}: both are 1 to {LONGEST}", hint=HINT)
    return ChainTable(tuple(ordered))
