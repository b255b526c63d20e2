"""Findings about PERF_MODE invariants in an engine's log, with file and line number."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final

from specgate.backends.servers.evidence.log_lines import LogLine
from specgate.backends.servers.failures import LONGEST_LINE
from specgate.contract import Finding
from specgate.contract.protocols import cleaned

READ_AT_MOST: Final = 64 << 20
"""Bytes at the end of a log that are searched. What is before counts only towards the line numbers."""
LONGEST_SEARCHED: Final = 4096
"""Bytes of a line that are searched."""
PIECE: Final = 1 << 20


def findings_in(log: Path, known: Sequence[LogLine], *, speculative: bool, start: int = 0) -> tuple[Finding, ...]:
    """One finding per kind of line that occurs in `log` from byte `start` on. A log that cannot be read has none.

    `speculative`: whether the server drafts.
    """
    patterns = [(line, re.compile(line.pattern, re.I)) for line in known if speculative or not line.speculative]
    first: dict[LogLine, tuple[int, str]] = {}
    counts: dict[LogLine, int] = {}
    try:
        for number, text in numbered_lines(log, start):
            if kind := next((line for line, pattern in patterns if pattern.search(text)), None):
                counts[kind] = counts.get(kind, 0) + 1
                first.setdefault(kind, (number, cleaned(text).strip()[:LONGEST_LINE]))
    except OSError:
        return ()
    return tuple(
        Finding(
            invariant=line.invariant,
            reason_code=line.reason_code,
            breaks=line.breaks,
            count=counts[line],
            where=f"{log.name}:{number}",
            text=text,
            meaning=line.meaning,
        )
        for line, (number, text) in first.items()
    )


def numbered_lines(log: Path, start: int = 0) -> Iterator[tuple[int, str]]:
    """(number, text) of the lines of a log from byte `start` on, its end if it is long. Raises OSError."""
    with log.open("rb") as stream:
        begin = max(start, stream.seek(0, 2) - READ_AT_MOST)
        stream.seek(0)
        number = 1 + newlines(stream, begin)
        while raw := stream.readline(LONGEST_SEARCHED):
            yield number, raw.decode(errors="replace").rstrip("\n")
            while raw and not raw.endswith(b"\n"):  # the rest of a line that is too long
                raw = stream.readline(PIECE)
            number += 1


def newlines(stream: BinaryIO, end: int) -> int:
    """Count the lines that end before byte `end`. `stream` is read up to there."""
    count, left = 0, end
    while left > 0 and (piece := stream.read(min(PIECE, left))):
        count += piece.count(b"\n")
        left -= len(piece)
    return count
