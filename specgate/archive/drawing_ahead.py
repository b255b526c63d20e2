"""The reports of a large stored run, rendered by a second process while the first one recomputes the run.

Drawing takes as long as recomputing. A report is a pure function of the run and its policy: if the recomputed run turns
out to equal the stored one, what was rendered from the stored one is what the recomputed one gives.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from specgate import plugins
from specgate.api import Report
from specgate.core import Run
from specgate.errors import SpecgateError
from specgate.files.config import Config
from specgate.files.run_folder import RunFolder
from specgate.machine.host import usable_cpus

WORTH_IT: Final = 100
"""Cells from which on a second process is worth its start of about a second."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """What a second process renders of the stored run. Both are None where there is no second process."""

    stored: Run | None = None
    texts: Future[Mapping[str, str]] | None = None

    def text(self, file: str, run: Run) -> str | None:
        """The report `file` of `run`, if it was rendered and `run` equals the stored run."""
        if self.texts is None or self.stored != run:
            return None
        try:
            return self.texts.result().get(file)
        except (SpecgateError, BrokenProcessPool, ValueError, LookupError, TypeError, ArithmeticError):
            return None  # then this process renders it, and says what is wrong


@contextmanager
def drawing_ahead(folder: RunFolder) -> Iterator[Ahead]:
    """Render the reports of the run in `folder` in a second process, if it is large and there is a second CPU."""
    stored = stored_run(folder, folder.read_config())
    if len(stored.cells) < WORTH_IT or len(usable_cpus()) < 2:
        yield Ahead()
        return
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield Ahead(stored, pool.submit(rendered, folder.path))


def rendered(path: Path) -> dict[str, str]:
    """File → text of every report of the run in the folder `path`, as run.json stores the run."""
    folder = RunFolder.open(path, read_only=True)
    config = folder.read_config()
    run = stored_run(folder, config)
    found = {file: report for file, report in report_files().items() if (path / file).is_file()}
    return {file: report.render(run, config.policy) for file, report in found.items()}


def stored_run(folder: RunFolder, config: Config) -> Run:
    """The run as run.json stores it, with what config.resolved.yaml says of it."""
    return replace(folder.read_run(), scenarios=config.scenarios, pair=config.pair, kind=config.kind)


def report_files() -> dict[str, Report]:
    """File → report, for every installed report that is a file."""
    return {r.filename: r for r in map(plugins.report, plugins.registered("specgate.reports")) if r.filename}
