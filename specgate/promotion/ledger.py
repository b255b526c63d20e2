"""The ledger: how every run ended, in one append-only file beside the run folders.

`ledger.jsonl` holds a JSON object per line. Each line has the hash of the line before it in `prev_sha256`; the first
line has 64 zeros. A line that is edited, inserted or removed later therefore breaks the chain. `ledger.head` holds the
number of lines, the hash of the last one and the identity of the host that wrote it, so that lines cut off the end are
noticed too. The chain finds accidents and careless edits, not somebody who rewrites all of the files. `standing`
says what else an entry must have to count.

If a writer is killed in the middle of a line, the line has no newline (a torn line). It is never read as an entry, and
the next writer moves it to `ledger.torn.jsonl`. One writer at a time holds `ledger.lock`. Reading takes no lock and
writes nothing, so that a ledger on a read-only mount can be read: the files are read until they stay the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

from filelock import FileLock, Timeout

from specgate.contract import State
from specgate.errors import EnvironmentRefused, ExitCode, InvalidResult
from specgate.files.json_text import from_plain, parse_json, read_json, to_plain
from specgate.files.manifest import ENDING
from specgate.files.writing import disk
from specgate.machine import host

GENESIS: Final = "0" * 64
"""`prev_sha256` of the first line."""
_HASH: Final = re.compile("[0-9a-f]{64}")
LOCK_S: Final = 30.0
"""Seconds to wait for the lock. It is normally held for milliseconds."""
READS: Final = 1000
"""How often the files are read before a ledger that never stays the same is given up."""
CODES: Final[Mapping[State, frozenset[int]]] = {
    State.PASS: frozenset({ExitCode.PASS}),
    State.IMPROVED: frozenset({ExitCode.PASS}),
    State.FAIL: frozenset({ExitCode.FAIL}),
    State.INVALID: frozenset({ExitCode.INVALID, ExitCode.BACKEND_ERROR}),
    State.ENV_REJECTED: frozenset({ExitCode.ENV_REJECTED}),
    State.NOT_JUDGED: frozenset({ExitCode.NOT_JUDGED}),
    State.INCONCLUSIVE: frozenset(ExitCode)
    - {ExitCode.PASS, ExitCode.FAIL, ExitCode.INVALID, ExitCode.ENV_REJECTED, ExitCode.NOT_JUDGED},
}
"""State → the exit codes that a run with this state can end with."""


@dataclass(frozen=True, slots=True)
class Entry:
    """End of one run.

    `kind`: what kind of run it is, or `ab` for a comparison of two builds. Its subject and fingerprint are those of a
        run of the new build. `pin` and `unpin` say that the run is an anchor from `time` on, or no longer (`pins`).
    `time` and `process_started` are UTC, ISO 8601. `pid` and `process_started` together identify the process.
    `subject`: what was measured, by name (policy, pair, back end, options). `gates`: which scenarios were measured,
    name → SHA-256 of their content. `fingerprint`: source tree, policy rules, weights and machine, as far as they were
    known when the run ended; see `claim`. `manifest_sha256`: the hash of the run's MANIFEST.sha256. `override`: why a
    full run began although its micro gates were not green. `host`: which host it ran on (`machine.host.identity`).
    `not_judged`: what the run has to be judged by and was not, in words.
    """

    time: str
    run: str
    kind: Literal["micro", "full", "load", "ab", "pin", "unpin"]
    subject: Mapping[str, str]
    gates: Mapping[str, str]
    fingerprint: Mapping[str, str | None]
    state: State
    exit_code: int
    pid: int
    process_started: str
    manifest_sha256: str | None = None
    override: str | None = None
    host: str | None = None
    not_judged: tuple[str, ...] = ()

    @property
    def ends_a_run(self) -> bool:
        """True if this is the end of a run or of a comparison."""
        return self.kind not in ("pin", "unpin")

    def contradiction(self) -> str | None:
        """Return why state and exit code cannot both be true of one run; None if they can."""
        if self.exit_code in CODES.get(self.state, ()):
            return None
        return f"its state {self.state} and its exit code {self.exit_code} contradict each other"


@dataclass(frozen=True, slots=True)
class History:
    """All entries, oldest first.

    `torn`: the unfinished last line, if there is one. `set_aside`: how many earlier torn lines were moved aside.
    `host`: the host that wrote `ledger.head`; None if it does not say. `cut`: run folder → entry that is not yet in the
    file, since the ending of the run was cut; it is among `entries`.
    """

    entries: tuple[Entry, ...]
    torn: str | None = None
    set_aside: int = 0
    host: str | None = None
    cut: Mapping[str, Entry] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Files:
    """The content of the files of a ledger, b"" for one that is missing."""

    lines: bytes
    head: bytes
    torn: bytes


class Ledger:
    """The ledger of the run folders under `folder`. `archives` are folders that some of them were moved to.

    Reading and appending raise InvalidResult if the chain is broken or an entry contradicts itself, and then change no
    file. They raise EnvironmentRefused if a file cannot be read or written, or if another process holds the lock for
    too long.
    """

    def __init__(self, folder: Path, archives: Sequence[Path] = ()) -> None:
        self.folder, self.archives = folder, archives
        self.file = folder / "ledger.jsonl"
        self._head_file = folder / "ledger.head"
        self._torn_file = folder / "ledger.torn.jsonl"

    def read(self) -> History:
        """All entries, after the chain has been checked. A ledger that does not exist has no entries.

        A verdict that was reached counts, also where the harness was ended before it could be entered: `cut`.
        """
        with disk(self.file):
            decided = dict(self._cut())  # before the lines: what is entered meanwhile is seen there
            files = self._stable()
        lines, torn = split(files.lines)
        entries = tuple(self._entries(lines, files.head))
        cut = {folder: entry for folder, entry in decided.items() if entry not in entries}
        host_of_head = self._head(files.head)[2]
        return History(
            in_time(entries, cut.values()),
            torn.decode(errors="backslashreplace") if torn else None,
            files.torn.count(b"\n"),
            host_of_head,
            cut,
        )

    def _cut(self) -> Iterator[tuple[str, Entry]]:
        """Yield (run folder, entry) for every ending beside the ledger, and in its archives, that is being written or
        was cut. What is no ending is none of the ledger's.
        """
        for file in (file for place in (self.folder, *self.archives) for file in sorted(place.glob(f"*/{ENDING}"))):
            try:
                data = read_json(file)
                if isinstance(data, dict) and data.get("entry") is not None:
                    yield str(file.parent), from_plain(Entry, data["entry"], file)
            except (OSError, ValueError, InvalidResult):
                continue

    def enter(self, entry: Entry) -> str | None:
        """As `append`, unless the entry is there already: how a run ended is entered once."""
        return self.append(entry, once=True)

    def append(self, entry: Entry, *, once: bool = False) -> str | None:
        """Add one entry. It is on disk when this returns.

        Returns the torn line that was moved aside, or None. Raises ValueError for an entry whose state and exit code
        contradict each other. `once`: see `enter`.
        """
        if why := entry.contradiction():
            raise ValueError(f"{entry.run}: {why}")
        with disk(self.file):
            self.folder.mkdir(parents=True, exist_ok=True)
        with self._lock(), disk(self.file):
            files = self._files()
            lines, torn = split(files.lines)
            entries = list(self._entries(lines, files.head))
            if lines and self._head(files.head)[0] < len(lines):  # its writer was killed, or the disk was full
                self._write_head(len(lines), _sha256(lines[-1]))
            if once and entry in entries:
                return None
            if torn:
                self._set_aside(torn)
            line = line_of(entry, _sha256(lines[-1]) if lines else GENESIS)
            _append(self.file, line + b"\n")
            self._write_head(len(lines) + 1, _sha256(line))
        return torn.decode(errors="backslashreplace") if torn else None

    def _stable(self) -> Files:
        """The files, read until two readings in a row are the same: a writer may be at work."""
        before = self._files()
        for _ in range(READS):
            if (now := self._files()) == before:
                return now
            before = now
        raise EnvironmentRefused(f"{self.file}: it never stays the same", hint="see who writes it")

    def _files(self) -> Files:
        contents = (
            file.read_bytes() if file.exists() else b"" for file in (self.file, self._head_file, self._torn_file)
        )
        return Files(*contents)

    def _entries(self, lines: Sequence[bytes], head: bytes) -> Iterator[Entry]:
        previous = GENESIS
        for number, line in enumerate(lines, 1):
            try:
                data = parse_json(line)
            except ValueError:
                raise self._broken(number, "it is not JSON") from None
            if not isinstance(data, dict) or data.get("prev_sha256") != previous:
                raise self._broken(number, f"prev_sha256 is not the hash of the line before, {previous}")
            del data["prev_sha256"]
            entry = from_plain(Entry, data, Path(f"{self.file}:{number}"))
            if why := entry.contradiction():
                raise self._broken(number, why)
            yield entry
            previous = _sha256(line)
        self._check_head(lines, head)

    def _check_head(self, lines: Sequence[bytes], head: bytes) -> None:
        # A writer that was killed after the line but before the head leaves the head one line behind. The line that the
        # head names must still be there.
        count, last, _ = self._head(head)
        if count > len(lines):
            raise self._broken(len(lines) + 1, f"{self._head_file.name} knows {count} lines, {len(lines)} are left")
        if count < len(lines) - 1:
            raise self._broken(len(lines), f"{self._head_file.name} knows {count} lines only")
        if count and _sha256(lines[count - 1]) != last:
            raise self._broken(count, f"its hash is not {last}, as {self._head_file.name} has it")

    def _head(self, head: bytes) -> tuple[int, str, str | None]:
        """(number of lines, hash of the last one, host that wrote it or None)."""
        if not head:
            return 0, GENESIS, None
        count, last, host_of_head, *more = [*head.decode(errors="replace").split(), "", "", ""][:4]
        if not (count.isascii() and count.isdigit() and len(count) < 20) or not _HASH.fullmatch(last) or any(more):
            what = "a number of lines, a hash and a host"
            raise InvalidResult(f"{self._head_file}: not {what}", hint=self._hint())
        return int(count), last, host_of_head or None

    def _write_head(self, count: int, last: str) -> None:
        temporary = self._head_file.with_name("ledger.head.tmp")
        temporary.write_text(f"{count} {last} {host.identity()}\n")
        temporary.replace(self._head_file)

    def _set_aside(self, torn: bytes) -> None:
        """Move the torn line to `ledger.torn.jsonl`.

        It is copied first and cut off afterwards. If the writer is killed in between, the line is in both files, but it
        is still not an entry.
        """
        record = {"found": datetime.now(UTC).isoformat(timespec="seconds"), "line": torn.decode(errors="replace")}
        _append(self._torn_file, json.dumps(record).encode() + b"\n")
        with self.file.open("r+b") as file:
            file.truncate(self.file.stat().st_size - len(torn))

    def _broken(self, number: int, why: str) -> InvalidResult:
        return InvalidResult(
            f"{self.file}:{number}: the ledger was changed (ledger_tampered): {why}", hint=self._hint()
        )

    def _hint(self) -> str:
        return f"nothing was changed; to begin anew, without green runs, move {self.folder}/ledger.* elsewhere"

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


def in_time(entries: Sequence[Entry], others: Iterable[Entry]) -> tuple[Entry, ...]:
    """`entries` in their order, each of `others` before the first of them that is later."""
    merged = [*entries]
    for other in others:
        merged.insert(next((n for n, entry in enumerate(merged) if entry.time > other.time), len(merged)), other)
    return tuple(merged)


def split(content: bytes) -> tuple[list[bytes], bytes]:
    """(the complete lines, the torn last line or b"")."""
    *lines, torn = content.split(b"\n")
    return lines, torn


def line_of(entry: Entry, previous: str) -> bytes:
    """The entry as a line of the ledger: ASCII JSON without spaces. `previous`: the hash of the line before it."""
    return json.dumps({"prev_sha256": previous, **to_plain(Entry, entry)}, separators=(",", ":")).encode()


def _append(file: Path, line: bytes) -> None:
    with file.open("ab", buffering=0) as out:
        out.write(line)
        os.fsync(out.fileno())


def _sha256(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()
