"""Check the folder of a comparison of two builds offline: its manifest, then its result and pages, recomputed from the
journals of both sides. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

from specgate import plugins
from specgate.ab.folder import FILES, FOLDERS, RESULT, AbFolder, result_json
from specgate.ab.judging import result_of
from specgate.archive.json_comparison import differences_of
from specgate.archive.report_comparison import line_differences
from specgate.contract.two_builds import TwoBuilds
from specgate.errors import SpecgateError
from specgate.files.manifest import MANIFEST, Difference, listings, manifest_differences
from specgate.machine import inventory

LATER_FIELDS: Final = ("looks", "texts[[]*.unsteady")
"""Places in ab.json that comparisons without looks do not have (`fnmatch` patterns)."""


@dataclass(frozen=True, slots=True)
class BuildsVerification:
    """What checking a comparison found. `result`: as it was recomputed; None if it could not be. `files`: how many
    files the manifest lists. `notes`: what is worth knowing beside.
    """

    result: TwoBuilds | None
    files: int
    differences: tuple[Difference, ...]
    notes: tuple[str, ...] = ()


def verify_builds(path: Path) -> BuildsVerification:
    """Check the comparison in the folder `path`. Raises UsageError if there is none."""
    folder = AbFolder.open(path)
    differences, notes = list(manifest_differences(path, FOLDERS)), list[str]()
    files = len(listings(path / MANIFEST)) if (path / MANIFEST).is_file() else 0
    try:
        asked = folder.asked()
        result = result_of(folder, asked, folder.journals(), folder.processes())
        older = not asked.looks
        again = differences_of(RESULT, folder.result(), result_json(result))
        differences += [d for d in again if not (older and d.absent and later(d.place))]
        ours = asked.begun_with.get("source_tree_sha256") == inventory.source_tree_sha256()
        pages = list(page_differences(path, result))
        differences += [d for d in pages if ours or not (path / d.file).is_file()]
        if pages and not ours:
            notes.append("pages are not as this source tree would write them: check out the tree that made them")
    except (SpecgateError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        # Samples that have the right form but break the arithmetic cannot have been measured.
        differences.append(Difference(path.name, "", f"cannot be recomputed: {error}"))
        return BuildsVerification(None, files, tuple(differences))
    return BuildsVerification(result, files, tuple(differences), tuple(notes))


def later(place: str) -> bool:
    """Whether a place in ab.json was added after the first comparisons had been stored."""
    return any(fnmatch(place, pattern) for pattern in LATER_FIELDS)


def page_differences(path: Path, result: TwoBuilds) -> Iterator[Difference]:
    """Where the stored pages say anything else than the same pages rendered again."""
    for format, file in FILES:
        if not (path / file).is_file():
            yield Difference(file, "", "is missing")
            continue
        stored, again = (path / file).read_text(encoding="utf-8"), plugins.view("ab").render(result, format)
        yield from line_differences(file, stored, again, pictures=format == "html")
