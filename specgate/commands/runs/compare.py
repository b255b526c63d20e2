"""`specgate runs compare`: stored runs side by side, by builds, engines, acceptance or variants."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from specgate.commands.door import command
from specgate.commands.output import RUN, Output, output_options
from specgate.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from specgate.analysis.speculation.summary import Key
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


def acceptance(stored: Sequence[StoredRun], keys: Iterable[str] = ()) -> Laid:
    from specgate.archive.comparing.acceptance import acceptance_of

    return acceptance_of(stored, [keys_in(text) for text in keys]), ExitCode.PASS


def variants(stored: Sequence[StoredRun]) -> Laid:
    from specgate.analysis.tradeoff import tradeoff_of

    groups = tradeoff_of((one.run, one.blocks()) for one in stored)
    if not groups:
        raise UsageError("no run has a cell: there is nothing to lay out", hint="give runs that measured something")
    return groups, ExitCode.PASS


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


VIEWS: Final[Mapping[str, Callable[..., Laid]]] = {v.__name__: v for v in (builds, engines, acceptance, variants)}
OWN: Final = {"policy": "builds", "keys": "acceptance"}
"""Option → the only view that it is for."""


@command(short_help="Lay stored runs side by side: builds, engines, acceptance, variants.")
@click.argument("runs", nargs=-1, required=True, type=RUN, metavar="RUN...")
@click.option("--by", type=click.Choice(list(VIEWS)), help="What is laid side by side.")
@click.option(
    "--policy", metavar="FILE|NAME", help="builds: what must hold of B beside A (compare; of files: results)."
)
@click.option(
    "--keys",
    multiple=True,
    metavar="KEY[,KEY...]",
    help="acceptance: a table by these keys: engine, class, context, position, spec, batch, scenario, run. May be "
    "repeated.",
)
@output_options
def compare(runs: tuple[Path, ...], by: str | None, output: Output, **settings: Any) -> None:
    """Lay the run folders RUN... side by side.

    \b
    Example: specgate runs compare A B --by builds

    \b
    --by builds      run B beside run A, cell by cell, judged by a policy
    --by engines     a row per cell, a column per back end; nothing is judged
    --by acceptance  acceptance over all requests; nothing is judged
    --by variants    each role and variant: speed, memory, exactness; nothing is judged

    Without --by: variants of one run, builds for two runs of one back end, else engines.

    builds: tokens and acceptance are paired by prompt, each speed-up in time with the baseline of its own run. Other
    times are not paired in time, so they prove nothing unless the policy trusts them. The exit code is the policy's.
    `--policy engines` judges tokens and acceptance of another engine alone.

    RUN may be a result of another tool, such as of `vllm bench serve`, or a folder of them. Repetitions decide: three
    files, lines or samples of each side.
    """
    from specgate.archive.stored_runs import load_runs

    named = {name: value for name, value in settings.items() if value is not None and value != ()}
    by = by or next((OWN[name] for name in named), None)
    if foreign := next((name for name in named if OWN[name] != by), None):
        hint = f"leave it out, or ask for --by {OWN[foreign]}"
        raise UsageError(f"--{foreign.replace('_', '-')} says nothing --by {by}", hint=hint)
    if of_other_tools(runs):
        if by not in (None, "builds"):
            raise UsageError(f"--by {by} needs run folders", hint="results of other tools are compared --by builds")
        subject, code = results(runs, **named)
        output.show("builds", subject)
        sys.exit(code)
    stored = load_runs(runs)
    by = by or usual_view(stored)
    subject, code = VIEWS[by](stored, **named)
    output.show(by, subject)
    sys.exit(code)


def usual_view(stored: Sequence[StoredRun]) -> str:
    """Return the view of runs for which none is asked for."""
    if len(stored) == 1:
        return "variants"
    backends = {result.cell.point.backend for one in stored for result in one.run.cells}
    return "builds" if len(stored) == 2 and len(backends) == 1 else "engines"


def keys_in(text: str) -> tuple[Key, ...]:
    """Return the keys of one --keys. Raises UsageError for an unknown one, and for one that is there twice."""
    from specgate.analysis.speculation.summary import KEYS

    keys: list[Key] = []
    for name in (part.strip() for part in text.split(",")):
        key = next((key for key in KEYS if key == name), None)
        if key is None:
            close = difflib.get_close_matches(name, KEYS, n=1)
            guess = f"did you mean {close[0]!r}? " if close else ""
            raise UsageError(f"--keys {text}: {name!r} is not a key", hint=f"{guess}keys: {', '.join(KEYS)}")
        if key in keys:
            raise UsageError(f"--keys {text}: {name!r} is there twice", hint="give each key once")
        keys.append(key)
    return tuple(keys)
