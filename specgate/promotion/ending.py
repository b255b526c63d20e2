"""The end of a run, or of a comparison, as one step.

1. `ending.json`    holds the verdict: the ledger's entry, and the files that state it (run.json, gates.json; ab.json)
2. `ledger.jsonl`   the entry
3. those files, MANIFEST.sha256, the reports and their lines in the manifest; then `ending.json` is removed

The first step decides. A harness that is ended before it, by a signal or a full disk, has ended nothing: the run is
continued, has nothing left to measure, and comes to its verdict again. After it, `finish` does what is missing, as
often as it takes. While `ending.json` is there, `Ledger.read` counts its entry.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from specgate.errors import InvalidResult, NotEnded, SpecgateError
from specgate.files.json_record import read_record
from specgate.files.json_text import parse_json, to_plain
from specgate.files.manifest import ENDING, manifest_of
from specgate.files.run_folder import RunFolder
from specgate.files.writing import json_text, write_whole
from specgate.promotion.ledger import Entry, Ledger

SCHEMA: Final = "specgate.ending/v1"


@dataclass(frozen=True, slots=True)
class Ending:
    """A verdict that was reached.

    `entry`: for the ledger; None of a run that measured nothing. `files`: name → text of the JSON files that state the
    verdict. `reports`: the names of the files that are rendered from them.
    """

    entry: Entry | None
    files: Mapping[str, str]
    reports: tuple[str, ...]

    def stated(self, name: str) -> Any:
        """Return the content of a file that states the verdict."""
        return parse_json(self.files[name])


Rendering = Callable[[], Iterator[tuple[str, str]]]
"""Yields the name and the text of each report, once the files that state the verdict are written."""


def begin(
    folder: RunFolder,
    files: Mapping[str, Mapping[str, Any]],
    reports: tuple[str, ...],
    entry_of: Callable[[str], Entry | None],
) -> Ending:
    """Decide the end of the run in `folder`: write `ending.json`.

    `entry_of`: SHA-256 of the manifest, without reports → the ledger's entry. Raises EnvironmentRefused where the file
    cannot be written; then nothing has ended.
    """
    folder.remove_unfinished()
    texts = {name: json_text(data) for name, data in files.items()}
    ending = Ending(entry_of(sha256_of_text(manifest(folder, texts, reports))), texts, reports)
    folder.write_json(ENDING, {"schema": SCHEMA, **to_plain(Ending, ending)})
    return ending


def cut(path: Path) -> Ending | None:
    """The ending of the run in the folder `path` that was cut; None if none was.

    Raises InvalidResult where its file holds anything else.
    """
    return read_record(Ending, path / ENDING, SCHEMA)


def cut_in_words(path: Path) -> str | None:
    """Sentence on the ending of the run or the comparison in the folder `path` that was cut, with the command that
    finishes it; None if none was cut.
    """
    if (ending := cut(path)) is None:
        return None
    kind, verdict = "full", "not reached"
    if ending.entry is not None:
        kind, verdict = ending.entry.kind, f"{ending.entry.state} (exit {ending.entry.exit_code})"
    command = f"specgate {kind} --resume {shlex.quote(str(path))}"
    return f"its ending was cut: verdict {verdict}, and not everything is stored. {command} finishes it"


def refuse_cut(path: Path) -> None:
    """Raise NotEnded where the ending of the run or the comparison in the folder `path` was cut."""
    if why := cut_in_words(path):
        raise NotEnded(f"{path} has not ended: {why}")


def finish(folder: RunFolder, ending: Ending, ledger: Ledger, rendering: Rendering) -> str | None:
    """Do what follows from `ending`. Returns the torn line that the ledger moved aside, or None.

    Raises InvalidResult if the samples are not those that the verdict rests on, or if the ledger was changed, and
    EnvironmentRefused where a file cannot be written. A ledger that takes no entry keeps no file from being written.
    """
    folder.remove_unfinished()
    first, entry = manifest(folder, ending.files, ending.reports), ending.entry
    if entry is not None and sha256_of_text(first) != entry.manifest_sha256:
        hint = f"only the run as it was when it ended with {entry.state} can be finished: start a new one"
        raise InvalidResult(f"{folder.path}: a file was changed after the verdict had been reached", hint=hint)
    torn, problem = None, None
    try:
        torn = ledger.enter(entry) if entry is not None else None
    except SpecgateError as error:
        problem = error
    for name, text in ending.files.items():
        write_whole(folder.path / name, text)
    for name, text in rendering():
        folder.write_text(name, text)
    folder.write_manifest(first)
    if problem is not None:
        raise problem
    folder.remove(ENDING)
    return torn


def manifest(folder: RunFolder, files: Mapping[str, str], reports: tuple[str, ...]) -> str:
    """The first lines of the manifest: of all files but the reports, with `files` as they will be."""
    coming = {name: sha256_of_text(text) for name, text in files.items()}
    return manifest_of(folder.path, coming, without=reports)


def sha256_of_text(text: str) -> str:
    """SHA-256 of a file that holds `text`."""
    return hashlib.sha256(text.encode()).hexdigest()
