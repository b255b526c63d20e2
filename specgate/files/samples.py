"""The journals of a run, under `samples/`: each noun on a line of its own, appended as the run goes and read back.

`files.journal` declares them: which noun is in which file, and by which key a newer line replaces an older one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from specgate.contract import EngineFacts
from specgate.files.harness_files import OwnFiles
from specgate.files.journal import FIELDS, FILES, Journal, PointEngine
from specgate.files.json_text import from_plain, to_plain

N = TypeVar("N")


class Samples(OwnFiles):
    """The journals, typed. What cannot be read raises InvalidResult with file and line."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        super().__init__(path, read_only=read_only)
        self._journal: Journal | None = None

    def append(self, noun: object) -> None:
        """Append a noun to its journal."""
        self._append(f"{FILES[type(noun)].file}.jsonl", to_plain(type(noun), noun))

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
