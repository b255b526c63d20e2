"""The runs of real engines that the documentation quotes: archives in docs/results."""

from __future__ import annotations

import tarfile
from pathlib import Path

from tests.support.command import ROOT

RESULTS = ROOT / "docs" / "results"
KEPT = tuple(sorted(file.relative_to(RESULTS).as_posix() for file in RESULTS.glob("*/run*.tar.xz")))
"""Their names, such as `2026-11-30-h200/run-merge-32k.tar.xz`: each archive holds one run folder."""


def unpacked(name: str, into: Path) -> Path:
    """The run folder of the archive `name`, unpacked into the folder `into`, which holds no other run."""
    with tarfile.open(RESULTS / name) as archive:
        archive.extractall(into, filter="data")
    (file,) = into.rglob("run.json")
    return file.parent


def file_of(name: str, file: str) -> bytes:
    """Return the content of `file`, a path in the folder of the run in the archive `name`."""
    with tarfile.open(RESULTS / name) as archive:
        (result,) = (one for one in archive.getmembers() if one.name.endswith(f"/{file}"))
        reading = archive.extractfile(result)
        assert reading is not None
        return reading.read()
