"""MANIFEST.sha256: the SHA-256 of every file of a run, in the format of `sha256sum`, and whether a folder agrees.

A run folder holds plain files, in itself, in `samples/` and in `logs/`. Anything else (links,
devices, pipes, further folders) is a difference too, since a hash says nothing about it.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from specgate.files.writing import sha256_of

MANIFEST: Final = "MANIFEST.sha256"
FORMER: Final = "MANIFEST.before-resume.sha256"
"""The manifest that a run had when it was resumed. It is there until the resumed run has ended."""
ENDING: Final = "ending.json"
"""The verdict of a run whose ending is being written. It is there until everything is stored (`promotion.ending`)."""
LOCK: Final = ".lock"
"""An empty file that the process which writes the run holds locked."""
UNLISTED: Final = frozenset({MANIFEST, FORMER, ENDING, LOCK})
"""Files of a run folder that the manifest does not list."""
FOLDERS: Final = frozenset({"samples", "logs"})
NOTHING: Final[Mapping[str, str]] = {}
_LINE: Final = re.compile(r"([0-9a-f]{64})  (.+)")
_REPORT: Final = re.compile(rb"[0-9a-f]{64}  [^/\n]+\n")


@dataclass(frozen=True, slots=True)
class Difference:
    """One place in a file that is not what it should be. An empty `place` stands for the whole file."""

    file: str
    place: str
    why: str
    later: bool = False
    """Whether the file is only without a key that has nothing to say: it is older than the key."""

    def __str__(self) -> str:
        return f"{self.file}: {self.place}: {self.why}" if self.place else f"{self.file}: {self.why}"


def manifest_differences(path: Path, folders: frozenset[str] = FOLDERS) -> Iterator[Difference]:
    """Files of the run folder `path` that are missing, changed, not listed by its manifest, or no plain files.

    `folders`: the folders that it may hold.
    """
    odd = list(odd_files(path, folders))
    file = path / MANIFEST
    if not file.is_file():
        yield Difference(MANIFEST, "", "is missing: the run never ended (continue it with --resume), or it was removed")
        yield from odd
        return
    yield from malformed(file)
    listed, unusable = listings(file), {d.file for d in odd}
    present = plain_files(path) - UNLISTED
    for name, sha256 in listed.items():
        if name in unusable:
            continue
        if name not in present:
            yield Difference(name, "", f"is missing; {MANIFEST} lists it")
        elif (sha256_now := sha256_of(path / name)) != sha256:
            yield Difference(name, "", f"its SHA-256 is {sha256_now}; {MANIFEST} says {sha256}")
    for name in sorted(present - listed.keys()):
        yield Difference(name, "", f"is not in {MANIFEST}")
    yield from odd


def listings(file: Path) -> dict[str, str]:
    """File name → SHA-256, in the format of sha256sum."""
    rows = (line.partition("  ") for line in _lines(file))
    return {name: sha256 for sha256, _, name in rows}


def malformed(file: Path) -> Iterator[Difference]:
    """Lines of a manifest that are no listing, that name a file twice, or that name one outside of the run folder."""
    listed = set[str]()
    for number, line in enumerate(_lines(file), 1):
        match = _LINE.fullmatch(line)
        name = match[2] if match else ""
        if match is None:
            yield Difference(file.name, f"line {number}", "is not a SHA-256, two spaces and the name of a file")
        elif name in listed:
            yield Difference(file.name, f"line {number}", f"{name} is listed twice")
        elif PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            yield Difference(file.name, f"line {number}", f"{name} lies outside of the run folder")
        listed.add(name)


def _lines(file: Path) -> list[str]:
    """Return the lines of a manifest. Only a line feed ends one, unlike in `str.splitlines`."""
    *lines, rest = file.read_bytes().decode(errors="replace").split("\n")
    return [*lines, rest] if rest else lines


def plain_files(path: Path) -> set[str]:
    """The plain files below `path`, relative to it. Links are not followed."""
    return {name for name, mode in _modes(path) if stat.S_ISREG(mode)}


def odd_files(path: Path, folders: frozenset[str] = FOLDERS) -> Iterator[Difference]:
    """Yield entries of a run folder that are no plain files, and a lock that holds anything. `folders`: what it may
    hold.
    """
    for name, mode in _modes(path):
        if stat.S_ISLNK(mode):
            yield Difference(name, "", "is a symbolic link; a run folder holds plain files")
        elif stat.S_ISDIR(mode):
            if name not in folders and not re.search(r"(?:^|/)logs/", name):
                yield Difference(name, "", "is a folder that no run makes")
        elif not stat.S_ISREG(mode):
            yield Difference(name, "", "is a device, a pipe or a socket; a run folder holds plain files")
        elif name == LOCK and (path / name).stat().st_size:
            yield Difference(name, "", "is not empty; no run writes into it")


def _modes(path: Path) -> Iterator[tuple[str, int]]:
    """(name relative to `path`, mode) of everything below `path`, in the order of the names. Links are not followed."""
    for folder, folders, files in os.walk(path):
        folders.sort()
        for name in sorted((*folders, *files)):
            entry = Path(folder, name)
            yield entry.relative_to(path).as_posix(), entry.lstat().st_mode


def grown_differences(path: Path) -> Iterator[Difference]:
    """Yield where a run, resumed and then killed, contradicts the manifest that it had when it was resumed.

    A journal may have grown since: some whole lines at its beginning must be what the manifest lists. Configuration and
    logs must be as they were. What a run writes anew at its end (env.json, run.json, gates.json, reports) may be
    another one.
    """
    for name, sha256 in listings(path / FORMER).items():
        if name == "config.resolved.yaml" or name.startswith(("samples/", "logs/")):
            if name not in plain_files(path):
                yield Difference(name, "", f"is missing; {FORMER} lists it")
            elif not _begins_with(path / name, sha256, lines=name.startswith("samples/")):
                yield Difference(name, "", f"does not begin with what {FORMER} lists (SHA-256 {sha256})")


def _begins_with(file: Path, sha256: str, *, lines: bool) -> bool:
    content = file.read_bytes()
    digest = hashlib.sha256()
    if lines:
        for line in content.splitlines(keepends=True):
            if digest.hexdigest() == sha256:
                return True
            digest.update(line)
        return digest.hexdigest() == sha256
    return hashlib.sha256(content).hexdigest() == sha256


def manifest_of(path: Path, coming: Mapping[str, str] = NOTHING, without: Collection[str] = ()) -> str:
    """The text of the manifest of the run folder `path`, but for the files `without`.

    `coming`: file → SHA-256 of files that are yet to be written, in the place of what lies there.
    """
    names = sorted((plain_files(path) | coming.keys()) - UNLISTED - {*without})
    return "".join(f"{coming.get(name) or sha256_of(path / name)}  {name}\n" for name in names)


def vouched(manifest: Path, sha256: str | None) -> bool:
    """True if `sha256`, as the ledger has it, is that of a manifest: of the whole file, or of its first lines.

    The lines after these list reports, which are written once the ledger has the verdict. Reports lie in the run folder
    itself: a line of a file in `samples/` or `logs/` that stands there is not vouched for.
    """
    if not manifest.is_file():
        return False
    digest, lines = hashlib.sha256(), manifest.read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        digest.update(line)
        if digest.hexdigest() == sha256:
            return all(_REPORT.fullmatch(later) for later in lines[number:])
    return False
