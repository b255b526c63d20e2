"""How many tokens to draft by how many requests run at a time: `1:5,4:3,16:1`, or a file that has such a table.

Up to so many rows a step costs what one row costs; beyond, every draft has its price. So the best chain is the shorter,
the more requests share a step. `specgate tune drafts` makes the file from measured runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from specgate.errors import UsageError

SCHEMA: Final = "specgate.drafts-by-batch/v1"
LONGEST: Final = 4096
HINT: Final = "REQUESTS:DRAFTS,…, such as 1:5,4:3,16:1, or a file of `specgate tune drafts`"


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
        if not (colon and requests.strip().isdecimal() and drafts.strip().isdecimal()):
            raise UsageError(f"{where} = {text[:80]!r}: {part[:40]!r} is no pair of numbers", hint=HINT)
        rows.append((int(requests), int(drafts)))
    return checked(rows, f"{where} = {text[:80]!r}")


def table_in(file: Path) -> ChainTable:
    """The table of a file. Raises UsageError, with file and key."""
    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"{file}: {str(error).splitlines()[0]}", hint=HINT) from error
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise UsageError(f"{file}: schema: not {SCHEMA}", hint="a file of `specgate tune drafts`")
    drafts = found.get("drafts")
    whole = isinstance(drafts, dict) and all(type(n) is int for pair in drafts.items() for n in pair)
    if not isinstance(drafts, dict) or not whole:
        raise UsageError(f"{file}: drafts: not a map from requests to draft tokens", hint="drafts: {1: 5, 4: 3, 16: 1}")
    return checked(list(drafts.items()), f"{file}: drafts")


def checked(rows: list[tuple[int, int]], where: str) -> ChainTable:
    ordered = sorted(rows)
    if not ordered or len({requests for requests, _ in ordered}) < len(ordered):
        raise UsageError(f"{where}: {'a number of requests twice' if ordered else 'no row'}", hint=HINT)
    for requests, drafts in ordered:
        if not 1 <= requests <= LONGEST or not 1 <= drafts <= LONGEST:
            raise UsageError(f"{where}: {requests}:{drafts}: both are 1 to {LONGEST}", hint=HINT)
    return ChainTable(tuple(ordered))
