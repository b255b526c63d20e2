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
from specgate.archive.report_comparison import differences_of, line_differences
from specgate.contract.two_builds import TwoBuilds
from specgate.errors import OtherVersion, SpecgateError
from specgate.files.manifest import MANIFEST, Difference, listings, manifest_differences
from specgate.files.run_schema import made_by, that_version
from specgate.machine import inventory


@dataclass(frozen=True, slots=True)
class BuildsVerification:
    """Result of checking a comparison.

    `result`: as it was recomputed; None if it could not be.
    `files`: how many files the manifest lists.
    `notes`: what is worth knowing beside. `untold` and `next_step`: as in `Verification`.
    """

    result: TwoBuilds | None
    files: int
    differences: tuple[Difference, ...]
    notes: tuple[str, ...] = ()
    untold: tuple[Difference, ...] = ()
    next_step: str = ""


def verify_builds(path: Path) -> BuildsVerification:
    """Check the comparison in the folder `path`.

    Raises UsageError if there is none, and OtherVersion for one of another schema.
    """
    folder = AbFolder.open(path)
    differences, notes = list(manifest_differences(path, FOLDERS)), list[str]()
    files = len(listings(path / MANIFEST)) if (path / MANIFEST).is_file() else 0
    try:
        request = folder.asked()
        result = result_of(folder, request, folder.journals(), folder.processes())
        again = list(differences_of(RESULT, folder.result(), result_json(result)))
        ours = request.begun_with.get("source_tree_sha256") == inventory.source_tree_sha256()
        pages = list(page_differences(path, result))
        differences += [d for d in pages if ours or not (path / d.file).is_file()]
        run = {"fingerprint": request.begun_with}
        if not ours:
            notes.append(f"the comparison was made by {made_by(run)}")
        if pages and not ours:
            notes.append("pages are not as this source tree would write them")
    except OtherVersion:
        raise
    except (SpecgateError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        # Samples that have the right form but break the arithmetic cannot have been measured.
        differences.append(Difference(path.name, "", f"cannot be recomputed: {error}"))
        return BuildsVerification(None, files, tuple(differences))
    if ours:
        return BuildsVerification(result, files, (*differences, *again), tuple(notes))
    return BuildsVerification(result, files, tuple(differences), tuple(notes), tuple(again), that_version(run))


def page_differences(path: Path, result: TwoBuilds) -> Iterator[Difference]:
    """Yield the places where the stored pages say anything else than the same pages rendered again."""
    for format, file in FILES:
        if not (path / file).is_file():
            yield Difference(file, "", "is missing")
            continue
        stored, again = (path / file).read_text(encoding="utf-8"), plugins.view("ab").render(result, format)
        yield from line_differences(file, stored, again, pictures=format == "html")
