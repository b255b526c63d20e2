"""`specgate engine sweep`: many settings of an engine, halved by speed, and the best compared with the default."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from specgate.commands.ab import stored_request
from specgate.commands.door import command
from specgate.commands.numbers import BUDGET
from specgate.commands.options import QUESTION, SIBLINGS, key_value, take
from specgate.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from specgate.ab.request import AbRequest
    from specgate.contract.sweeps import Setting

OWN: Final = ("tries", "grid", "budget", "through", "resume")


@command(short_help="Find the fastest setting: options or environment variables.")
@click.option(
    "--try", "tries", multiple=True, metavar="NAME=V1,V2,…", help="Values of an option; env.NAME: a variable."
)
@click.option(
    "--grid", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="YAML: values may hold commas."
)
@click.option(
    "--through",
    metavar="WRITES:READS",
    help="Each setting writes a file with one option; reading it with the other is measured.",
)
@click.option(
    "--resume", type=click.Path(path_type=Path), metavar="FOLDER", help="Go on with a sweep that was cut off."
)
@click.option("--budget", type=BUDGET, default="1h", show_default=True, metavar="TIME", help="For everything.")
@take("--backend", *SIBLINGS, "--scenario", *(name for name in QUESTION if name not in ("--steps", "--new-tokens")))
@click.option("--steps", type=click.IntRange(1, 100_000), default=64, show_default=True, help="Most steps of a block.")
@take("--isolate", "--out", "--plain", "--debug")
@click.option("--apart", is_flag=True, help="Never load the default and a setting at once.")
@click.pass_context
def sweep(context: click.Context, /, **options: Any) -> None:
    """Measure every combination of values beside the default, and find the fastest.

    \b
    Example: specgate engine sweep --backend NAME --try env.TILE=64,128

    Each setting is an `ab` against the default: paired blocks, tokens checked. The slower half is dropped, the others
    get twice the blocks, until one is left. That one is compared with the default again, on fresh blocks, so that
    having been chosen does not flatter it.

    --through env.TM_GEMM_EXPORT:env.TM_GEMM_IMPORT tunes TurboMind's products with each setting of --try
    env.TM_GEMM_TUNE=1, and compares the import with the default.

    --resume FOLDER, with the same command line, goes on: settings keep the process pairs that they had.

    A setting whose engine fails or whose texts differ is named and cannot win. The file sweep.json has throughput,
    acceptance length and tile statistics of every setting.

    Exit codes: the best is proven faster, or the default stays: 0; it cannot be told, or nothing changes: 3; every
    setting fails: 7.
    """
    from specgate.sweep.grid import read_grid, values_of

    grid = dict(read_grid(options["grid"])) if options["grid"] else {}
    named = values_of([key_value(text, "--try") for text in options["tries"]])
    if twice := [name for name in named if name in grid]:
        raise UsageError(f"--try {twice[0]}: {options['grid']} has values for it, too", hint="say it once")
    code, _ = carried_out(context, {**grid, **named})
    sys.exit(code)


def carried_out(context: click.Context, grid: Mapping[str, Sequence[str]]) -> tuple[ExitCode, Path]:
    """Carry out the sweep of a command line over `grid`, option → values. Returns the exit code and the file."""
    from specgate.sweep.session import SweepRequest, carry_out

    shared = ("ab", *arguments(context))

    def comparison(setting: Setting) -> AbRequest:
        return stored_request((*shared, *(word for item in setting.items() for word in ("--new", "=".join(item)))))

    through = context.params["through"]
    writes, colon, reads = (through or "").partition(":")
    if through is not None and not (writes and reads and writes != reads):
        raise UsageError(f"--through {through}", hint="write it as WRITES:READS, two options of the back end")
    pair = (writes, reads) if colon else None
    return carry_out(SweepRequest(comparison, grid, context.params["budget"], pair, context.params["resume"]))


def arguments(context: click.Context) -> Iterator[str]:
    """Yield the options of a sweep's command line that `ab` takes, as they are written."""
    for param in context.command.params:
        assert isinstance(param, click.Option)
        source = context.get_parameter_source(param.name or "")
        if param.name in OWN or source is not ParameterSource.COMMANDLINE:
            continue
        value = context.params[param.name or ""]
        if isinstance(value, bool):
            yield (param.opts if value else param.secondary_opts)[0]
            continue
        values = (f"{key}={text}" for key, text in value.items()) if isinstance(value, dict) else value
        for each in values if param.multiple else (value,):
            yield from (param.opts[0], str(each))
