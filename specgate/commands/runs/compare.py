"""`specgate runs compare`: stored runs side by side, by builds, engines, texts, acceptance or variants."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from specgate.commands.door import command
from specgate.commands.numbers import Real
from specgate.commands.output import RUN, Output, output_options
from specgate.contract.types import PARAMETER
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


def texts(
    stored: Sequence[StoredRun], margin: float = 3.0, near_tie: float | None = None, offline: bool = False
) -> Laid:
    from tempfile import TemporaryDirectory

    from specgate.analysis.verdict import overall_of_agreement
    from specgate.archive.comparing.texts import agreement_of, with_margins
    from specgate.contract import NearTies
    from specgate.planning.gates import near_ties

    if len(stored) < 2:
        raise UsageError("--by texts needs a run beside the reference", hint="the first run is the reference")
    agreement = agreement_of(stored, margin)
    if not offline:
        tie = near_ties(stored[0].policy) if near_tie is None else NearTies(near_tie)
        with TemporaryDirectory(prefix="specgate-") as logs:
            agreement = with_margins(agreement, stored[0], tie, Path(logs))
    return agreement, overall_of_agreement(agreement)[1]


def acceptance(stored: Sequence[StoredRun], keys: Iterable[str] = ()) -> Laid:
    from specgate.archive.comparing.acceptance import acceptance_of

    return acceptance_of(stored, [keys_in(text) for text in keys]), ExitCode.PASS


def variants(stored: Sequence[StoredRun]) -> Laid:
    from specgate.analysis.tradeoff import tradeoff_of

    groups = tradeoff_of((one.run, one.blocks()) for one in stored)
    if not groups:
        raise UsageError("no run has a cell: there is nothing to lay out", hint="give runs that measured something")
    return groups, ExitCode.PASS


VIEWS: Final[Mapping[str, Callable[..., Laid]]] = {
    view.__name__: view for view in (builds, engines, texts, acceptance, variants)
}
OWN: Final = {"policy": "builds", "margin": "texts", "near_tie": "texts", "offline": "texts", "keys": "acceptance"}
"""Option → the only view that it is for."""


@command(short_help="Lay stored runs side by side: builds, engines, texts, acceptance, variants.")
@click.argument("runs", nargs=-1, required=True, type=RUN, metavar="RUN...")
@click.option("--by", type=click.Choice(list(VIEWS)), help="What is laid side by side.")
@click.option("--policy", metavar="FILE|NAME", help="builds: what must hold of B beside A.  [default: compare]")
@click.option(
    "--margin",
    type=Real(0, 100),
    metavar="PERCENT",
    help="texts: how far acceptance may lie from the reference's, either way.  [default: 3]",
)
@click.option(
    "--near-tie",
    type=Real(0, PARAMETER),
    metavar="LOGITS",
    help="texts: gap of the two largest logits below which texts may differ (default: the reference's policy).",
)
@click.option("--offline", is_flag=True, default=None, help="texts: load no engine to find near ties.")
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
    --by texts       other engines' texts and acceptance beside the first run's
    --by acceptance  acceptance over all requests; nothing is judged
    --by variants    each role and variant: speed, memory, exactness; nothing is judged

    Without --by: variants of one run, builds for two runs of one back end, else engines.

    builds: tokens and acceptance are paired by prompt, each speed-up in time with the baseline of its own run. Other
    times are not paired in time, so they prove nothing unless the policy trusts them. The exit code is the policy's.

    texts: full runs, compared token by token. Where they differ, the reference's engine is loaded again and asked for
    its two largest logits. Exit code 0 if all figures are proven to be within the margin, 1 if one is proven to be
    outside or a text differs without a near tie, 3 if there are too few prompts to tell.
    """
    from specgate.archive.stored_runs import load_runs

    named = {name: value for name, value in settings.items() if value is not None and value != ()}
    by = by or next((OWN[name] for name in named), None)
    if foreign := next((name for name in named if OWN[name] != by), None):
        hint = f"leave it out, or ask for --by {OWN[foreign]}"
        raise UsageError(f"--{foreign.replace('_', '-')} says nothing --by {by}", hint=hint)
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
