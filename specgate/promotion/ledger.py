"""The ledger: how every run ended, in one append-only file beside the run folders.

`ledger.jsonl` holds a JSON object per line. Each line has the hash of the line before it in `prev_sha256`; the first
line has 64 zeros. A line that is edited, inserted or removed later therefore breaks the chain. `ledger.head` holds the
number of lines and the hash of the last one, so that lines cut off the end are noticed too. Nothing is signed: this
finds accidents and careless edits, not somebody who rewrites all of the files.

If a writer is killed in the middle of a line, the line has no newline (a torn line). It is never read as an entry, and
the next writer moves it to `ledger.torn.jsonl`. Reading and writing take turns: one process at a time holds
`ledger.lock`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

from filelock import FileLock, Timeout

from specgate.core import State
from specgate.errors import EnvironmentRefused, InvalidResult
from specgate.files.json_text import parse_json
from specgate.files.plain import from_plain, to_plain
from specgate.files.writing import disk

GENESIS: Final = "0" * 64
"""`prev_sha256` of the first line."""
_HASH: Final = re.compile("[0-9a-f]{64}")
LOCK_S: Final = 30.0
"""Seconds to wait for the lock. It is normally held for milliseconds."""


@dataclass(frozen=True, slots=True)
class Entry:
    """How one run ended.

    `time` and `process_started` are UTC, ISO 8601. `pid` and `process_started` together identify the process.
    `subject`: what was measured, by name (policy, pair, back end, options). `gates`: which scenarios were measured,
    name → SHA-256 of their content. `fingerprint`: source tree, policy rules, weights and machine, as far as they were
    known when the run ended; see `claim`. `manifest_sha256`: the hash of the run's MANIFEST.sha256. `override`: why a
    full run began although its micro gates were not green.
    """

    time: str
    run: str
    kind: Literal["micro", "full"]
    subject: Mapping[str, str]
    gates: Mapping[str, str]
    fingerprint: Mapping[str, str | None]
    state: State
    exit_code: int
    pid: int
    process_started: str
    manifest_sha256: str | None = None
    override: str | None = None


@dataclass(frozen=True, slots=True)
class History:
    """All entries, oldest first.

    `torn`: the unfinished last line, if there is one. `set_aside`: how many earlier torn lines were moved aside.
    """

    entries: tuple[Entry, ...]
    torn: str | None = None
    set_aside: int = 0


class Ledger:
    """The ledger of the run folders under `folder`.

    Reading and appending raise InvalidResult if the chain is broken, and then change no file. They raise
    EnvironmentRefused if a file cannot be read or written, or if another process holds the lock for too long.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "ledger.jsonl"
        self._head_file = folder / "ledger.head"
        self._torn_file = folder / "ledger.torn.jsonl"

    def read(self) -> History:
        """All entries, after the chain has been checked. A ledger that does not exist has no entries."""
        if not self.file.exists() and not self._head_file.exists():
            return History(())
        with self._lock(), disk(self.file):
            lines, torn = self._lines()
            entries = tuple(self._entries(lines))
            set_aside = self._torn_file.read_bytes().count(b"\n") if self._torn_file.exists() else 0
        return History(entries, torn.decode(errors="backslashreplace") if torn else None, set_aside)

    def append(self, entry: Entry) -> str | None:
        """Add one entry. It is on disk when this returns.

        Returns the torn line that was moved aside, or None.
        """
        with disk(self.file):
            self.folder.mkdir(parents=True, exist_ok=True)
        with self._lock(), disk(self.file):
            lines, torn = self._lines()
            list(self._entries(lines))
            if torn:
                self._set_aside(torn)
            previous = _sha256(lines[-1]) if lines else GENESIS
            line = json.dumps({"prev_sha256": previous, **to_plain(Entry, entry)}, separators=(",", ":")).encode()
            _append(self.file, line + b"\n")
            self._write_head(len(lines) + 1, _sha256(line))
        return torn.decode(errors="backslashreplace") if torn else None

    def _lines(self) -> tuple[list[bytes], bytes]:
        """(the complete lines, the torn last line or b"")."""
        *lines, torn = (self.file.read_bytes() if self.file.exists() else b"").split(b"\n")
        return lines, torn

    def _entries(self, lines: list[bytes]) -> Iterator[Entry]:
        previous = GENESIS
        for number, line in enumerate(lines, 1):
            try:
                data = parse_json(line)
            except ValueError:
                raise self._broken(number, "it is not JSON") from None
            if not isinstance(data, dict) or data.pop("prev_sha256", None) != previous:
                raise self._broken(number, f"prev_sha256 is not the hash of the line before, {previous}")
            yield from_plain(Entry, data, Path(f"{self.file}:{number}"))
            previous = _sha256(line)
        self._check_head(lines)

    def _check_head(self, lines: list[bytes]) -> None:
        # A writer that was killed after the line but before the head leaves the head one line behind. The line that the
        # head names must still be there.
        count, last = self._head()
        if count > len(lines):
            raise self._broken(len(lines) + 1, f"{self._head_file.name} knows {count} lines, {len(lines)} are left")
        if count < len(lines) - 1:
            raise self._broken(len(lines), f"{self._head_file.name} knows {count} lines only")
        if count and _sha256(lines[count - 1]) != last:
            raise self._broken(count, f"its hash is not {last}, as {self._head_file.name} has it")

    def _head(self) -> tuple[int, str]:
        if not self._head_file.exists():
            return 0, GENESIS
        count, _, last = self._head_file.read_text(encoding="ascii", errors="replace").strip().partition(" ")
        if not (count.isascii() and count.isdigit() and len(count) < 20) or not _HASH.fullmatch(last):
            raise InvalidResult(f"{self._head_file}: not a number of lines and a hash", hint=self._hint())
        return int(count), last

    def _write_head(self, count: int, last: str) -> None:
        temporary = self._head_file.with_name("ledger.head.tmp")
        temporary.write_text(f"{count} {last}\n")
        temporary.replace(self._head_file)

    def _set_aside(self, torn: bytes) -> None:
        """Move the torn line to `ledger.torn.jsonl`.

        It is copied first and cut off afterwards. If the writer is killed in between, the line is in both files, but it
        is still not an entry.
        """
        found = {"found": datetime.now(UTC).isoformat(timespec="seconds"), "line": torn.decode(errors="replace")}
        _append(self._torn_file, json.dumps(found).encode() + b"\n")
        with self.file.open("r+b") as file:
            file.truncate(self.file.stat().st_size - len(torn))

    def _broken(self, number: int, why: str) -> InvalidResult:
        return InvalidResult(
            f"{self.file}:{number}: the ledger was changed (ledger_tampered): {why}", hint=self._hint()
        )

    def _hint(self) -> str:
        return f"nothing was changed; to begin anew, with no streak, move {self.folder}/ledger.* elsewhere"

    @contextmanager
    def _lock(self) -> Iterator[None]:
        lock = FileLock(self.folder / "ledger.lock")
        try:
            with disk(self.file):
                lock.acquire(timeout=LOCK_S)
        except Timeout:
            raise EnvironmentRefused(
                f"{self.file}: another process has held its lock for {LOCK_S:g} s", hint="see who holds ledger.lock"
            ) from None
        try:
            yield
        finally:
            lock.release()


def _append(file: Path, line: bytes) -> None:
    with file.open("ab", buffering=0) as out:
        out.write(line)
        os.fsync(out.fileno())


def _sha256(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()
