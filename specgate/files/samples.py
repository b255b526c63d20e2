"""The files of a run folder as such, written whole or line by line, and its journals, under `samples/`: each noun on a
line of its own, appended as the run goes and read back.

`files.journal` declares the journals: which noun is in which file, and by which key a newer line replaces an older one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

from specgate.contract import EngineFacts
from specgate.errors import InvalidResult
from specgate.files.journal import FIELDS, FILES, Journal, PointEngine
from specgate.files.json_text import from_plain, parse_json, to_plain
from specgate.files.writing import as_json, as_stored, disk, json_text, write_whole

N = TypeVar("N")

WATCH: Final = "samples/environment.jsonl"
"""The journal that the monitor process writes; the harness writes all others."""


class Samples:
    """Files below `path`, and the journals among them, typed.

    Every write raises EnvironmentRefused where the disk is full or the folder is not writable. What cannot be read
    raises InvalidResult with file and line.

    A process that died may have left an unfinished last line in a journal. Reading cuts that line off, so that writing
    can go on. In a folder that was opened `read_only`, reading raises InvalidResult instead.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path, self.read_only = path, read_only
        self._journal: Journal | None = None

    @property
    def watch_file(self) -> Path:
        """The file that the monitor process appends its samples to."""
        return self.path / WATCH

    def write_json(self, name: str, data: object) -> None:
        """Write `data` to the file called `name` in the run folder."""
        write_whole(self.path / name, json_text(data))

    def write_text(self, name: str, text: str) -> None:
        """Write `text` to the file called `name` in the run folder."""
        write_whole(self.path / name, as_stored(text))

    def append_journal(self, name: str, lines: bytes) -> None:
        """Continue the journal called `name` with the whole journal of another folder, the monitor's too."""
        if not lines.endswith(b"\n"):
            raise InvalidResult(f"samples/{name}: does not end with a whole line")
        self._append_lines(name, lines)

    def append(self, noun: object) -> None:
        """Append a noun to its journal, and flush it to disk before the next block starts: a kill -9 loses at most the
        block in flight.
        """
        line = as_json(to_plain(type(noun), noun), separators=(",", ":")) + "\n"
        self._append_lines(f"{FILES[type(noun)].file}.jsonl", line.encode())

    def lines(self, noun: type[N]) -> list[N]:
        """Return the nouns of one kind in the order in which they were written, without those that were replaced."""
        form = FILES[noun]
        name = f"{form.file}.jsonl"
        nouns = [from_plain(noun, line, self.path / "samples" / name) for line in self._lines(name)]
        return list(form.shown(nouns)) if form.listed else nouns

    def keyed(self, noun: type[N]) -> dict[str, N]:
        """Return the nouns of one kind by the key of their journal."""
        keyed: dict[str, N] = FILES[noun].shown(self.lines(noun))
        return keyed

    def engines(self) -> dict[str, EngineFacts]:
        """Return point key → the engine that measured it first."""
        engines: dict[str, EngineFacts] = FILES[PointEngine].shown(self.lines(PointEngine))
        return engines

    def journal(self) -> Journal:
        """Return everything under `samples/`. In a folder that was opened `read_only`, it is read once."""
        if self._journal is not None:
            return self._journal
        parts: dict[str, Any] = {name: each.shown(self.lines(each.noun)) for name, each in FIELDS.items()}
        journal = Journal(**parts)
        self._journal = journal if self.read_only else None
        return journal

    def _append_lines(self, name: str, lines: bytes) -> None:
        file = self.path / "samples" / name
        with disk(file), file.open("ab") as out:
            out.write(lines)
            out.flush()
            os.fsync(out.fileno())

    def _lines(self, name: str) -> Iterator[object]:
        file = self.path / "samples" / name
        content = file.read_bytes() if file.is_file() else b""
        whole = content[: content.rfind(b"\n") + 1]
        for number, line in enumerate(whole.decode(errors="replace").split("\n")[:-1], 1):
            try:
                yield parse_json(line)
            except ValueError as error:
                raise InvalidResult(f"{file}:{number}: not JSON: {error}") from error
        if len(whole) == len(content):
            return
        if self.read_only:
            number = whole.count(b"\n") + 1
            raise InvalidResult(f"{file}:{number}: an unfinished line", hint="continue the run with --resume")
        # The last line has no newline: it was being written when the process died. Cut it off, so that the next
        # line starts on its own.
        with disk(file), file.open("r+b") as out:
            out.truncate(len(whole))
