"""`specgate runs verify RUN`: check that a run follows from its samples. `specgate runs check FILE`: judge a file."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from specgate.commands.door import command
from specgate.errors import ExitCode, UsageError
from specgate.terminal import echo

if TYPE_CHECKING:
    from specgate.archive.verification import Verification
    from specgate.contract import Run


@command(short_help="Recompute a run's figures and verdicts from its samples.")
@click.argument("run", type=click.Path(path_type=Path))
def verify(run: Path) -> None:
    """Recompute every figure, verdict and table of the run folder RUN from its samples, and check its manifest.

    \b
    Example: specgate runs verify RUN

    RUN may also be the folder of a comparison (`specgate ab`) or of a calibration (`specgate machine calibrate`).
    Nothing is measured and nothing is written. Exit code 0 if everything agrees, else 6; the file and the place of
    every difference are printed, and what could not be checked is said. Exit code 3 if RUN has not ended: the command
    that brings it to its end is printed. Exit code 4 if another version of specgate made RUN and only that version can
    tell: the version is named.
    """
    from specgate.ab.folder import is_comparison
    from specgate.archive.verification import is_calibration, unended

    if why := unended(run):
        echo(f"{run.name} has not ended: {why}")
        sys.exit(ExitCode.INCONCLUSIVE)
    if is_comparison(run):
        verify_comparison(run)
        return
    if is_calibration(run):
        verify_calibration(run)
        return
    from specgate.analysis.verdict import in_words
    from specgate.archive.verification import verify as verified
    from specgate.run.recompute import ending

    check = verified(run)
    end_where_it_differs(f"run {run.name}", check)
    assert check.result is not None
    again = check.result
    counted = f"{len(again.cells)} cells, {len(again.comparisons)} comparisons, {len(again.verdicts)} verdicts"
    echo(f"run {run.name} holds: {check.files} files unchanged; {counted} recomputed, all as stored")
    if "run" in again.failures:
        say_cut(again, run)
    else:
        verdict, code = ending(again)
        echo(f"verdict {verdict} (exit {int(code)})")
        for gap in again.not_judged:
            echo(f"not judged: {in_words(gap)}")


def say_cut(run: Run, path: Path) -> None:
    """Print that `run`, in the folder `path`, has no verdict, and the command that continues it."""
    from specgate.run.resuming import resume_command

    echo("verdict not reached: the run was cut short")
    echo(f"next: {resume_command(run, path)}")


def verify_comparison(path: Path) -> None:
    """As `verify`, for the folder of a comparison of two builds."""
    from specgate.archive.verification import comparison_differences, verify_builds

    check = verify_builds(path)
    beside, notes = comparison_differences(path, check.result)
    check = replace(check, differences=(*check.differences, *beside), notes=(*check.notes, *notes))
    end_where_it_differs(f"comparison {path.name}", check)
    assert check.result is not None
    again = check.result
    echo(f"comparison {path.name} holds: {check.files} files unchanged; {len(again.quantities)} quantities recomputed")
    echo(f"verdict {again.verdict} (exit {int(again.code)})")


def verify_calibration(path: Path) -> None:
    """As `verify`, for the folder of a calibration, or of one of its further processes, which has no profile."""
    from specgate.archive.verification import verify_calibration as verified

    check = verified(path)
    end_where_it_differs(f"calibration {path.name}", check)
    again = check.result
    summary = f"{len(again.cells)} cells recomputed, all as stored" if again else "a further process, without a profile"
    echo(f"calibration {path.name} holds: {check.files} files unchanged; {summary}")


def end_where_it_differs(subject: str, check: Verification[Any]) -> None:
    """Print differences and notes; exit where anything differs from what is stored."""
    for difference in (*check.differences, *check.untold):
        echo(f"differs: {difference}")
    for note in check.notes:
        echo(f"note: {note}")
    if check.differences:
        echo(f"{subject} does not hold: {len(check.differences)} difference{'s' * (len(check.differences) > 1)}")
        sys.exit(ExitCode.INVALID)
    if check.untold:
        places = f"{len(check.untold)} place{'s' * (len(check.untold) > 1)}"
        echo(f"{subject} cannot be judged by this version: it computes {places} differently")
        echo(f"next: {check.next_step}")
        sys.exit(ExitCode.ENV_REJECTED)


@command(short_help="Judge a stored run, or a result file, by a policy.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--policy", metavar="FILE|NAME", help="Gates and their numbers; always needed.")
@click.option(
    "--baseline",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Another tool's result without speculation, for the speed-up.",
)
@click.option("--scenario", metavar="NAME", help="Scenario of the policy that another tool's result measured.")
@click.option("--role", metavar="spec-N", help="Role of another tool's result, if it does not state its draft length.")
def check(file: Path, policy: str | None, baseline: Path | None, scenario: str | None, role: str | None) -> None:
    """Judge FILE by a policy: a run folder, or a result of another tool, such as `vllm bench serve`.

    \b
    Example: specgate runs check RUN --policy FILE

    A run folder is computed anew from its samples, near ties and figures too, as far as it was measured; nothing in it
    changes. A policy that is chosen once the result is known proves less than one
    that was chosen before: such a verdict is not counted as a green run. A run that was cut short has none
    (exit code 3). The folder of a comparison (`specgate ab`) is judged by its own margins, and not taken here.

    docs/stored-runs.md lists the tools whose results are read. A folder of files are repetitions of one result. Speed
    is judged if FILE and --baseline hold three each. Gates that cannot be judged from it are named. A required gate
    that cannot be judged is never green (exit code 3), and neither is a file of which the policy judges tokens,
    acceptance or speed nowhere (exit code 8).
    """
    from specgate import plugins
    from specgate.analysis.verdict import dead_rules, overall
    from specgate.archive.judging.other_results import judged_results
    from specgate.archive.judging.run_folder import judged_anew
    from specgate.files.run_folder import is_run
    from specgate.planning.policy import find_policy

    if policy is None:
        hint = f"--policy FILE|NAME; one with the floors that it keeps: specgate policy init {file}"
        raise UsageError(f"no policy to judge {file} by", hint=hint)
    rules = find_policy(policy, plugins.gates())
    if is_run(file):
        options = {"baseline": baseline, "scenario": scenario, "role": role}
        for option in (f"--{name} {value}" for name, value in options.items() if value):
            message = f"{option}: {file} is a run folder, which says itself what it measured"
            raise UsageError(message, hint="leave it out")
        run = judged_anew(file, rules)
        echo(plugins.report("details").render(run, rules))
    else:
        run = judged_results(file, rules, baseline=baseline, scenario=scenario, role=role)
        for line in (*figure_lines(run), *verdict_lines(run)):
            echo(line)
    if run.status == "interrupted":
        say_cut(run, file)
        sys.exit(ExitCode.INCONCLUSIVE)
    state, code = overall(run)
    word = code.name if code is ExitCode.BACKEND_ERROR else state.value
    echo(", ".join((f"verdict {word} (exit {int(code)})", *dead_rules(run))))
    sys.exit(code)


def figure_lines(run: Run) -> Iterator[str]:
    """Every figure of a result of another tool."""
    from specgate.analysis.cell_names import cell_name

    for result in run.cells if "tool" in run.environment else ():
        figures = (f"{v.metric} {v.value:.4g}" for v in result.values.values() if v.value is not None)
        yield f"{cell_name(result.cell.key)}: {', '.join(figures)}"


def verdict_lines(run: Run) -> Iterator[str]:
    """Every verdict, each next step once, and what nothing had to judge."""
    from specgate.analysis.cell_names import cell_name
    from specgate.analysis.verdict import in_words

    advised = set[str]()
    for v in run.verdicts:
        kind = "" if v.required else " (advisory)"
        yield f"{v.state.value}{kind} {f'{v.rule} on {cell_name(v.cell)}' if v.cell else v.rule}: {v.message}"
        if v.next_step and v.next_step not in advised:
            yield f"  next: {v.next_step}"
            advised.add(v.next_step)
    for gap in run.not_judged:
        yield f"not judged: {in_words(gap)}"
