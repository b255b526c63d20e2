"""Check the folder of a comparison of two builds offline: its manifest, then its result and pages, recomputed from the
journals of both sides. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from specgate import plugins
from specgate.ab.folder import FILES, FOLDERS, RESULT, AbFolder, result_json
from specgate.ab.judging import result_of
from specgate.archive.json_comparison import differences_of
from specgate.archive.report_comparison import line_differences
from specgate.core.two_builds import SIDES, SideName, TwoBuilds
from specgate.errors import SpecgateError
from specgate.files.journal import Journal
from specgate.files.manifest import MANIFEST, Difference, listings, manifest_differences


@dataclass(frozen=True, slots=True)
class BuildsVerification:
    """What checking a comparison found. `result`: as it was recomputed; None if it could not be. `files`: how many
    files the manifest lists.
    """

    result: TwoBuilds | None
    files: int
    differences: tuple[Difference, ...]


def verify_builds(path: Path) -> BuildsVerification:
    """Check the comparison in the folder `path`. Raises UsageError if there is none."""
    folder = AbFolder.open(path)
    differences = list(manifest_differences(path, FOLDERS))
    files = len(listings(path / MANIFEST)) if (path / MANIFEST).is_file() else 0
    try:
        journals: dict[SideName, Journal] = {name: folder.sides[name].journal() for name in SIDES}
        result = result_of(folder, folder.asked(), journals, folder.processes())
        differences += differences_of(RESULT, folder.result(), result_json(result))
        differences += page_differences(path, result)
    except (SpecgateError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        # Samples that have the right form but break the arithmetic cannot have been measured.
        differences.append(Difference(path.name, "", f"cannot be recomputed: {error}"))
        return BuildsVerification(None, files, tuple(differences))
    return BuildsVerification(result, files, tuple(differences))


def page_differences(path: Path, result: TwoBuilds) -> Iterator[Difference]:
    """Where the stored pages say anything else than the same pages rendered again."""
    for format, file in FILES:
        if not (path / file).is_file():
            yield Difference(file, "", "is missing")
            continue
        stored, again = (path / file).read_text(encoding="utf-8"), plugins.view("ab").render(result, format)
        yield from line_differences(file, stored, again, pictures=format == "html")
