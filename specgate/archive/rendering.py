"""Render reports of stored runs: the text of each, and the file that it goes to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specgate import plugins
from specgate.archive.stored_runs import StoredRun
from specgate.contract.protocols import Combined, Report, Separate
from specgate.errors import UsageError


def rendered(name: str, run: StoredRun) -> str:
    """The text of the report `name` for one run."""
    return plugins.report(name).render(run.run, run.policy)


def files(names: Sequence[str], runs: Sequence[StoredRun]) -> Iterator[tuple[str, str]]:
    """(path, text) of every report in `names`.

    A report that can combine runs becomes one file for all of them. Any other becomes a file per run, or several, in a
    folder named like the run if there are several runs. Raises UsageError, before anything is rendered, if there is no
    report of that name or it is not written to a file.
    """
    chosen = [(plugin, file_of(plugin)) for plugin in (plugins.report(name) for name in dict.fromkeys(names))]
    for plugin, file in chosen:
        if isinstance(plugin, Combined):
            yield file, plugin.render_all([run.run for run in runs])
            continue
        for run in runs:
            folder = "" if len(runs) == 1 else f"{run.path.absolute().name}/"
            several = plugin.render_each(run.run) if isinstance(plugin, Separate) else None
            for name, text in (several or {file: plugin.render(run.run, run.policy)}).items():
                yield f"{folder}{name}", text


def file_of(report: Report) -> str:
    if report.filename is None and not isinstance(report, Separate):
        raise UsageError(f"report {report.name!r} is for the terminal: it has no file")
    return report.filename or report.name
