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
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final

from specgate.contract import Run
from specgate.errors import SpecgateError
from specgate.files.config import Config
from specgate.files.run_folder import RunFolder
from specgate.machine.host import usable_cpus
from specgate.run.ending import report_files, stored_run

WORTH_IT: Final = 100
"""Cells from which on a second process is worth its start of about a second."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """Reports of the stored run that a second process renders. Without a second process there is nothing.

    `texts`: file → its text.
    """

    stored: Run | None = None
    texts: Mapping[str, Future[str]] = field(default_factory=dict)

    def text(self, file: str, run: Run) -> str | None:
        """The report `file` of `run`, if its rendering has begun and `run` equals the stored run."""
        text = self.texts.get(file)
        if text is None or self.stored != run or text.cancel():
            return None
        try:
            return text.result()
        except (SpecgateError, BrokenProcessPool, ValueError, LookupError, TypeError, ArithmeticError):
            return None  # then this process renders it, and says what is wrong


@contextmanager
def drawing_ahead(folder: RunFolder, wanted: bool) -> Iterator[Ahead]:
    """Render the reports of the run in `folder` in a second process, if they are `wanted`, it is large and there is a
    second CPU.
    """
    stored = stored_run(folder, folder.read_config())
    if not wanted or len(stored.cells) < WORTH_IT or len(usable_cpus()) < 2:
        yield Ahead(stored)
        return
    try:
        pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
    except (OSError, ImportError, NotImplementedError):  # a system without semaphores
        yield Ahead(stored)
        return
    try:
        # From the last, which take longest. What has not begun when it is asked for, the first process renders.
        files = [file for file in reversed(report_files()) if (folder.path / file).is_file()]
        yield Ahead(stored, {file: pool.submit(rendered, folder.path, file) for file in files})
    finally:
        pool.shutdown(cancel_futures=True)


def rendered(path: Path, file: str) -> str:
    """The report `file` of the run in the folder `path`, as run.json stores the run."""
    run, config = run_in(path)
    return report_files()[file].render(run, config.policy)


@lru_cache(maxsize=1)
def run_in(path: Path) -> tuple[Run, Config]:
    folder = RunFolder.open(path, read_only=True)
    config = folder.read_config()
    return stored_run(folder, config), config
