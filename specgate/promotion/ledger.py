"""What runs have ended with, in one append-only file beside them: `ledger.jsonl`, a JSON object per line.

Each line holds in `prev_sha256` the hash of the line before (the first one, of nothing: 64 zeros), so that a line which
was edited, added in the middle or taken out breaks the chain. `ledger.head` holds the number of lines and the hash of
the last one, so that lines cut off the end are missed too. Nothing is signed: this finds accidents and afterthoughts,
not somebody who rewrites all of it.

A line that its writer did not finish, because it was killed, has no newline. It is never read as an entry; the next
writer moves it to `ledger.torn.jsonl`. One writer at a time holds `ledger.lock`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

from filelock import FileLock, Timeout

from specgate.core import State
from specgate.errors import EnvironmentRefused, InvalidResult
from specgate.files.plain import from_plain, to_plain
from specgate.files.writing import disk

GENESIS: Final = "0" * 64
LOCK_S: Final = 30.0
"""A writer holds the lock for milliseconds."""


@dataclass(frozen=True, slots=True)
class Entry:
    """How one run ended. `time` is UTC, ISO 8601; `process_started` too, so that (pid, start) names a process.

    `subject` says what was measured, by name (policy, pair, back end, options); `gates` which scenarios, name → SHA-256
    of their content; `fingerprint` what it was made of, with the keys that were known when the run ended.
    `manifest_sha256` is the hash of the run's MANIFEST.sha256; `override` why a full run began out of order.
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
    """All entries, oldest first. `torn`: an unfinished last line; `set_aside`: how many of them were before."""

    entries: tuple[Entry, ...]
    torn: str | None = None
    set_aside: int = 0


class Ledger:
    """The ledger of the run folders under `folder`.

    Reading and appending raise InvalidResult where the chain is broken, and leave every file as it is;
    EnvironmentRefused where a file cannot be read or written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "ledger.jsonl"
        self._head_file = folder / "ledger.head"
        self._torn_file = folder / "ledger.torn.jsonl"

    def read(self) -> History:
        """Everything, checked; an absent ledger has no entries."""
        if not self.file.exists() and not self._head_file.exists():
            return History(())
        with self._lock(), disk(self.file):
            lines, torn = self._lines()
            entries = tuple(self._entries(lines))
            set_aside = self._torn_file.read_bytes().count(b"\n") if self._torn_file.exists() else 0
        return History(entries, torn.decode(errors="backslashreplace") if torn else None, set_aside)

    def append(self, entry: Entry) -> str | None:
        """Add one line, on disk when this returns. Returns the torn line that was moved aside, if there was one."""
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
        """(whole lines, the torn one)."""
        *lines, torn = (self.file.read_bytes() if self.file.exists() else b"").split(b"\n")
        return lines, torn

    def _entries(self, lines: list[bytes]) -> Iterator[Entry]:
        previous = GENESIS
        for number, line in enumerate(lines, 1):
            try:
                data = json.loads(line)
            except ValueError:
                raise self._broken(number, "it is not JSON") from None
            if not isinstance(data, dict) or data.pop("prev_sha256", None) != previous:
                raise self._broken(number, f"prev_sha256 is not the hash of the line before, {previous}")
            yield from_plain(Entry, data, Path(f"{self.file}:{number}"))
            previous = _sha256(line)
        self._check_head(lines)

    def _check_head(self, lines: list[bytes]) -> None:
        # A writer killed between line and head leaves the head one line behind: what it names must still be there.
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
        count, _, last = self._head_file.read_text().strip().partition(" ")
        if not count.isdigit() or len(last) != len(GENESIS):
            raise InvalidResult(f"{self._head_file}: not a number of lines and a hash", hint=self._hint())
        return int(count), last

    def _write_head(self, count: int, last: str) -> None:
        temporary = self._head_file.with_name("ledger.head.tmp")
        temporary.write_text(f"{count} {last}\n")
        temporary.replace(self._head_file)

    def _set_aside(self, torn: bytes) -> None:
        """Copy first, cut then: a writer killed in between leaves the line in both files, and in none as an entry."""
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
