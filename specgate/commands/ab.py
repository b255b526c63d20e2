"""`specgate ab`: an old and a new build of an engine, measured in turns in one session, and judged."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from specgate.commands.door import command
from specgate.commands.options import PATH, QUESTION, SIBLINGS, pairs, take, take_question
from specgate.commands.servers import take_sides, urls_argument
from specgate.errors import UsageError

if TYPE_CHECKING:
    from specgate.ab.request import AbRequest

PERCENT = click.FloatRange(0, 100, min_open=True)
MOST: Final = 200
"""Processes of each side."""
MOST_LOOKS: Final = 64
"""Numbers of processes after which the words are judged (`ab.folder`)."""


@command(short_help="Judge a change: two builds of an engine in one session.")
@urls_argument
@click.option("--base", metavar="REF", help="Old side: this git revision of the checkout; new side: the checkout.")
@click.option("--build", metavar="COMMAND", help="Shell command that builds a checkout; run in both (with --base).")
@click.option("--package", metavar="DIR", help="Where a checkout's code lies (default: src, or the checkout).")
@click.option("--old", multiple=True, callback=pairs, metavar="KEY=VALUE", help="The old side; may be repeated.")
@click.option("--new", multiple=True, callback=pairs, metavar="KEY=VALUE", help="The new side; may be repeated.")
@click.option("--same", is_flag=True, help="Both sides are one build: an A/A check of this machine.")
@take("--backend", *SIBLINGS, "--scenario", *(name for name in QUESTION if name not in ("--steps", "--new-tokens")))
@take("--no-baseline", "--isolate", "--out", "--plain", "--debug")
@click.option(
    "--processes", metavar="N[,N…]", help="Per side: 8 if 4 cannot tell, … (4,8,12,16,24; of running servers 8,16,24)."
)
@click.option("--resume", type=PATH, metavar="FOLDER", help="Go on; --processes says how many more.")
@click.option("--visits", type=click.IntRange(1, 100), default=1, show_default=True, help="Prompt sets per process.")
@click.option(
    "--quads", type=click.IntRange(1, 100), default=2, show_default=True, help="ABBA groups per role and prompts."
)
@click.option("--steps", type=click.IntRange(1, 100_000), help="Most steps of a block (default: 64; on a CPU 12).")
@click.option(
    "--margin-pct", type=PERCENT, help="Step time: less is the same (default: 1; of running servers 3; on a CPU 5)."
)
@click.option("--prefill-margin-pct", type=PERCENT, help="Prefill time: likewise (5; on a CPU 10).")
@click.option("--acceptance-margin-pct", type=PERCENT, help="Acceptance: likewise (2; on a CPU 5).")
@click.option("--same-within", "same_within_pct", type=PERCENT, metavar="PCT", help="SAME, too, if all are within it.")
@click.option("--apart", is_flag=True, help="Never load both builds at once.")
@click.pass_context
def ab(context: click.Context, /, **options: Any) -> None:
    """Measure an old and a new build of an engine in turns, and say whether the new one is SLOWER, FASTER or the SAME.

    \b
    Example: specgate ab --base main --backend NAME

    A side is said by KEY=VALUE: source=DIR, a folder to import its code from; python=FILE, the interpreter of
    its environment; backend=NAME. Every other key is an option of its back end. Two servers that run are said by
    their URLs: specgate ab OLD_URL NEW_URL.

    --resume FOLDER goes on with a comparison that was cut off, or adds processes to one that ended with CANNOT TELL.

    Exit codes: SAME and FASTER 0, SLOWER 1, CANNOT TELL 3.
    """
    from specgate.ab.session import carry_out, go_on

    if options["resume"] is None:
        sys.exit(carry_out(request_of(tuple(sys.argv[1:]), options)))
    named = [p for p in options if context.get_parameter_source(p) is ParameterSource.COMMANDLINE]
    if other := [p for p in named if p not in ("resume", "processes", "plain")]:
        names = ", ".join(sorted(p.opts[0] for p in context.command.params if p.name in other))
        raise UsageError(f"--resume together with {names}", hint="the comparison goes on with what it was started with")
    counts = counts_of(options["processes"]) if "processes" in named else ()
    if len(counts) > 1:
        raise UsageError(f"--resume with --processes {options['processes']}", hint="give one number: how many more")
    sys.exit(go_on(options["resume"], counts[0] if counts else None, options["plain"], stored_request))


def stored_request(arguments: Sequence[str]) -> AbRequest:
    """The request that a stored command line, which begins with `ab`, means."""
    return request_of(arguments, ab.make_context("ab", list(arguments[1:])).params)


def counts_of(text: str | None) -> tuple[int, ...]:
    """`8` or `8,16,24`; none for None. Raises UsageError for anything but ascending numbers from 1 to MOST."""
    if text is None:
        return ()
    parts = text.split(",")
    counts = tuple(int(part) for part in parts if part.strip().isdecimal())
    ascending = len(parts) == len(counts) <= MOST_LOOKS and list(counts) == sorted({*counts})
    if not ascending or not 1 <= counts[0] <= counts[-1] <= MOST:
        raise UsageError(f"--processes {text}", hint=f"write 8, or 8,16: ascending numbers up to {MOST}")
    return counts


def request_of(argv: Sequence[str], values: Mapping[str, Any]) -> AbRequest:
    """The request of the options `values`. `argv`: the arguments as they were written."""
    from specgate.ab.request import AbRequest
    from specgate.contract.two_builds import Margins
    from specgate.planning.request import Request

    options = {**values, "looks": counts_of(values["processes"])}
    for name in ("resume", "processes"):
        options.pop(name)
    margins = Margins(
        step_pct=options.pop("margin_pct"),
        prefill_pct=options.pop("prefill_margin_pct"),
        acceptance_pct=options.pop("acceptance_margin_pct"),
        same_within_pct=options.pop("same_within_pct"),
    )
    take_sides(options)
    steps = options.pop("steps")  # a limit of the comparison's blocks, not a question of its own
    options["question"] = take_question(options)
    of_both = {name: options.pop(name) for name in [f.name for f in fields(Request)] if name in options}
    run = Request(kind="micro", argv=tuple(argv), perf_mode=False, **of_both)
    return AbRequest(run, margins=margins, steps=steps, **options)
