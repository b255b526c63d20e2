"""Draft lengths: of a chain in one cycle, and by the number of running requests.

Up to so many rows a step costs what one row costs; beyond, every draft has its price. So the best chain is the shorter,
the more requests share a step. `specgate engine tune drafts` makes the file from measured runs.

A shorter chain changes no token: whatever is proposed, what is emitted is the target's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
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
        counts = [drafts for requests, drafts in self.rows if requests <= running]
        return counts[-1] if counts else self.rows[0][1]

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
    data = load(file).data
    if data.get("schema") != SCHEMA:
        raise UsageError(f"{file}: schema: not {SCHEMA}", hint="a file of `specgate engine tune drafts`")
    if unknown := [key for key in data if key not in KEYS]:
        raise UsageError(f"{file}: {unknown[0]}: no such key", hint=f"known: {', '.join(KEYS)}")
    rows = data.get("drafts")
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


CONFIDENCE: Final = "confidence"
BY_BATCH: Final = "k_by_batch"


@dataclass(frozen=True, slots=True)
class ChainLengths:
    """`confidence`: a chain ends behind the first token up to which the product of the draft's probabilities falls
    below this; None: it does not end for that. `table`: the most draft tokens by how many requests run; None: as the
    role says.
    """

    confidence: float | None = None
    table: ChainTable | None = None

    def most(self, k: int, running: int) -> int:
        """The longest chain of a step of spec-`k` in which so many requests run."""
        return min(k, self.table.most(running)) if self.table else k

    @property
    def words(self) -> str:
        """For the facts that an engine states of itself."""
        parts = [] if self.confidence is None else [f"while the draft is {self.confidence:g} sure"]
        return ", ".join((*parts, *([f"by batch {self.table}"] if self.table else [])))

    @property
    def warning(self) -> str:
        """For readers of an engine's figures."""
        return f"chains may end before N tokens of spec-N ({self.words}): the acceptance length is of shorter chains"


def lengths_of(options: Mapping[str, str]) -> ChainLengths | None:
    """Read the options for chain lengths; None if there are none. Raises UsageError for values that make no sense."""
    if CONFIDENCE not in options and BY_BATCH not in options:
        return None
    return ChainLengths(
        share(options[CONFIDENCE]) if CONFIDENCE in options else None,
        table_of(options[BY_BATCH], f"option {BY_BATCH}") if BY_BATCH in options else None,
    )


def share(text: str) -> float:
    """The probability that `text` is. Raises UsageError for what is not above 0 and below 1."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < 1:
        raise UsageError(f"option {CONFIDENCE} = {text}: not a probability", hint="above 0 and below 1, such as 0.3")
    return value
