"""Reports of stored runs: which file each becomes, and its text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specgate import plugins
from specgate.api import Combined, Report
from specgate.archive.stored import Stored
from specgate.errors import UsageError


def rendered(name: str, run: Stored) -> str:
    return plugins.report(name).render(run.run, run.policy)


def files(names: Sequence[str], runs: Sequence[Stored]) -> Iterator[tuple[str, str]]:
    """(path, text) of every report for all runs together, or else for each run, in a folder of its name.

    Raises UsageError, before anything is rendered, where a report is none or has no file.
    """
    chosen = [(plugin, file_of(plugin)) for plugin in (plugins.report(name) for name in dict.fromkeys(names))]
    for plugin, file in chosen:
        if isinstance(plugin, Combined):
            yield file, plugin.render_all([run.run for run in runs])
            continue
        for run in runs:
            text = plugin.render(run.run, run.policy)
            yield (file if len(runs) == 1 else f"{run.path.absolute().name}/{file}"), text


def file_of(report: Report) -> str:
    if report.filename is None:
        raise UsageError(f"report {report.name!r} is for the terminal: it has no file")
    return report.filename
