"""`specgate runs compare`: stored runs side by side, by builds, engines or acceptance."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from specgate.commands.door import command
from specgate.commands.output import RUN, Output, output_options
from specgate.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from specgate.archive.stored_runs import StoredRun

Laid = tuple[object, ExitCode]
"""What a view is rendered from, and the exit code."""


def builds(stored: Sequence[StoredRun], policy: str = "compare") -> Laid:
    from specgate.analysis.verdict import overall_of_contrast
    from specgate.archive.comparing.builds import contrast_of, judged

    if len(stored) != 2:
        hint = "give two, or more of them --by engines"
        raise UsageError(f"--by builds compares one run with another: here is {len(stored)} of them", hint=hint)
    contrast = judged(contrast_of(*stored), policy)
    return contrast, overall_of_contrast(contrast)[1]


def engines(stored: Sequence[StoredRun]) -> Laid:
    from specgate.archive.comparing.engines import matrix_of

    return matrix_of([one.run for one in stored]), ExitCode.PASS


def acceptance(stored: Sequence[StoredRun]) -> Laid:
    from specgate.archive.comparing.acceptance import acceptance_of

    return acceptance_of(stored), ExitCode.PASS


def results(paths: Sequence[Path], policy: str = "results") -> Laid:
    from specgate.analysis.verdict import overall_of_contrast
    from specgate.archive.comparing.builds import judged
    from specgate.archive.comparing.other_results import contrast_of_results

    if len(paths) != 2:
        hint = "give two; repetitions of a side are files in one folder, or lines of one file"
        raise UsageError(f"results of other tools are compared two by two: here is {len(paths)} of them", hint=hint)
    contrast = judged(contrast_of_results(*paths), policy)
    return contrast, overall_of_contrast(contrast)[1]


def of_other_tools(paths: Sequence[Path]) -> bool:
    """Return whether `paths` are results of other tools. Raises UsageError where some are run folders."""
    from specgate.files.run_folder import is_run

    others = [path for path in paths if path.exists() and not is_run(path)]
    if others and (missing := next((path for path in paths if not path.exists()), None)):
        raise UsageError(f"{missing}: no such file or folder")
    if others and len(others) < len(paths):
        raise UsageError(f"{others[0]} is not a run folder, and others are", hint="compare like with like")
    return bool(others)


VIEWS: Final[Mapping[str, Callable[..., Laid]]] = {v.__name__: v for v in (builds, engines, acceptance)}


@command(short_help="Lay stored runs side by side: builds, engines, acceptance.")
@click.argument("runs", nargs=-1, required=True, type=RUN, metavar="RUN...")
@click.option("--by", type=click.Choice(list(VIEWS)), help="What is laid side by side.")
@click.option(
    "--policy", metavar="FILE|NAME", help="builds: what must hold of B beside A (compare; of files: results)."
)
@output_options
def compare(runs: tuple[Path, ...], by: str | None, output: Output, policy: str | None) -> None:
    """Lay the run folders RUN... side by side.

    \b
    Example: specgate runs compare A B --by builds

    \b
    --by builds      run B beside run A, cell by cell, judged by a policy
    --by engines     a row per cell, a column per back end; nothing is judged
    --by acceptance  acceptance over all requests, by engine, class, context and position; nothing is judged

    Without --by: acceptance of one run, builds for two runs of one back end, else engines.

    builds: tokens and acceptance are paired by prompt, each speed-up in time with the baseline of its own run. Other
    times are not paired in time, so they prove nothing unless the policy trusts them. The exit code is the policy's.
    `--policy engines` judges tokens and acceptance of another engine alone.

    RUN may be a result of another tool, such as of `vllm bench serve`, or a folder of them. Repetitions decide: three
    files, lines or samples of each side.
    """
    from specgate.archive.stored_runs import load_runs

    named = {} if policy is None else {"policy": policy}
    if policy is not None and by not in (None, "builds"):
        raise UsageError(f"--policy says nothing --by {by}", hint="leave it out, or ask for --by builds")
    if of_other_tools(runs):
        if by not in (None, "builds"):
            raise UsageError(f"--by {by} needs run folders", hint="results of other tools are compared --by builds")
        subject, code = results(runs, **named)
        output.show("builds", subject)
        sys.exit(code)
    stored = load_runs(runs)
    by = by or ("builds" if named else usual_view(stored))
    subject, code = VIEWS[by](stored, **named)
    output.show(by, subject)
    sys.exit(code)


def usual_view(stored: Sequence[StoredRun]) -> str:
    """Return the view of runs for which none is asked for."""
    if len(stored) == 1:
        return "acceptance"
    backends = {result.cell.point.backend for one in stored for result in one.run.cells}
    return "builds" if len(stored) == 2 and len(backends) == 1 else "engines"
