"""The files of a run folder, which the harness alone writes, and what it remembers of each so that nobody else does."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from specgate.errors import InvalidResult
from specgate.files.content_hashes import Content, changed, content_of
from specgate.files.json_text import parse_json
from specgate.files.manifest import UNLISTED, odd_files, plain_files
from specgate.files.writing import as_json, as_stored, disk, json_text, sha256_of, write_whole

WATCH: Final = "samples/environment.jsonl"
"""The journal that the monitor process writes; the harness writes all others."""


class OwnFiles:
    """Files below `path`, of which whatever was written or read through this object is remembered by size and SHA-256.

    Every write raises EnvironmentRefused where the disk is full or the folder is not writable. A journal that somebody
    else has changed raises InvalidResult when it is read or continued, and `check` looks at all files.

    A process that died may have left an unfinished last line in a journal. Reading cuts that line off, so that writing
    can go on. In a folder that was opened `read_only`, reading raises InvalidResult instead.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path, self.read_only = path, read_only
        self._written: dict[str, Content] = {}
        """File name → what the harness knows it to hold."""

    def write_json(self, name: str, data: object) -> None:
        """Write `data` to the file called `name` in the run folder."""
        self._write(name, json_text(data))

    def write_text(self, name: str, text: str) -> None:
        """Write `text` to the file called `name` in the run folder."""
        self._write(name, as_stored(text))

    def _write(self, name: str, text: str) -> None:
        """Write `text`, which is masked already, and remember it."""
        write_whole(self.path / name, text)
        self._written[name] = content_of(text.encode())

    def _sha256(self, name: str) -> str:
        known = self._written.get(name)
        return sha256_of(self.path / name) if known is None or known.open_end else known.sha256

    # ── journals ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _append(self, name: str, data: object) -> None:
        """Append one line and flush it to disk before the next block starts: a kill -9 loses at most the block in
        flight.
        """
        self._append_lines(name, (as_json(data, separators=(",", ":")) + "\n").encode())

    def append_journal(self, name: str, lines: bytes) -> None:
        """Continue the journal called `name` with the whole journal of another folder, the monitor's too."""
        if not lines.endswith(b"\n"):
            raise InvalidResult(f"samples/{name}: does not end with a whole line")
        self._append_lines(name, lines)
        if (key := f"samples/{name}") == WATCH:
            self._written[key].open_end = False  # no monitor of this folder's own writes here

    def _append_lines(self, name: str, lines: bytes) -> None:
        file, key = self.path / "samples" / name, f"samples/{name}"
        if key not in self._written:
            self._written[key] = content_of(file.read_bytes() if file.is_file() else b"")
        known = self._written[key]
        with disk(file), file.open("ab") as out:
            if (size := os.fstat(out.fileno()).st_size) != known.size:
                raise changed(key, f"it has {size} bytes; the harness wrote {known.size}")
            out.write(lines)
            out.flush()
            os.fsync(out.fileno())
        known.append(lines)
        self._look_at_watch()

    def _lines(self, name: str) -> Iterator[object]:
        file, key = self.path / "samples" / name, f"samples/{name}"
        content = file.read_bytes() if file.is_file() else b""
        if key in self._written and (why := self._written[key].contradiction(content)):
            raise changed(key, why)
        whole = content[: content.rfind(b"\n") + 1]
        for number, line in enumerate(whole.decode(errors="replace").split("\n")[:-1], 1):
            try:
                yield parse_json(line)
            except ValueError as error:
                raise InvalidResult(f"{file}:{number}: not JSON: {error}") from error
        if self.read_only:
            if len(whole) != len(content):
                number = whole.count(b"\n") + 1
                raise InvalidResult(f"{file}:{number}: an unfinished line", hint="continue the run with --resume")
            return
        if len(whole) != len(content):
            # The last line has no newline: it was being written when the process died. Cut it off, so that the next
            # line starts on its own.
            with disk(file), file.open("r+b") as out:
                out.truncate(len(whole))
        self._written.setdefault(key, content_of(whole, open_end=key == WATCH))

    # ── nobody else writes ────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def watch_file(self) -> Path:
        """The file that the monitor process appends its samples to."""
        return self.path / WATCH

    def expect_watch(self) -> None:
        """From now on a monitor process appends its samples, until `adopt_watch` says what they are."""
        self._written.setdefault(WATCH, Content()).open_end = True

    def adopt_watch(self, start: int, size: int, sha256: str) -> None:
        """Hold the monitor's journal to what the monitor says that it wrote: `size` bytes from byte `start` on.

        Raises InvalidResult if the file holds anything else there.
        """
        known = self._written.setdefault(WATCH, Content(open_end=True))
        content = self.watch_file.read_bytes()
        why = known.contradiction(content) or content_of(content[start:]).mismatch(size, sha256)
        if why:
            raise changed(WATCH, why)
        known.append(content[known.size :])
        known.open_end = False

    def _look_at_watch(self) -> None:
        """Remember what the monitor has written so far, so that it cannot be rewritten later."""
        known = self._written.get(WATCH)
        if known is None or not known.open_end or not self.watch_file.is_file():
            return
        with disk(self.watch_file), self.watch_file.open("rb") as file:
            file.seek(known.size)
            known.append(file.read())

    def check(self) -> None:
        """Raises InvalidResult for the first file that is not as the harness left it, or that it has not written.

        Logs are left out, since engines write into them.
        """
        if odd := next((d for d in odd_files(self.path) if not d.file.startswith("logs/")), None):
            raise changed(odd.file, odd.why)
        present = {name for name in plain_files(self.path) if not name.startswith("logs/")} - UNLISTED
        for name, known in self._written.items():
            if name.startswith("logs/"):
                continue
            data = (self.path / name).read_bytes() if name in present else b""
            if why := known.contradiction(data):
                raise changed(name, why)
        if foreign := sorted(present - self._written.keys()):
            raise changed(foreign[0], "no part of the harness wrote it")
