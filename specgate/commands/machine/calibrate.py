"""`specgate machine calibrate`: measure how small a difference this machine can tell."""

from __future__ import annotations

import sys
from typing import Any

import click

from specgate.commands.door import command
from specgate.commands.numbers import PERCENT, RUNS
from specgate.commands.options import take


@command(short_help="Measure the noise: how small a difference can be told here?")
@click.option("--scenario", "scenarios", multiple=True, required=True, metavar="FILE|NAME", help="Micro scenario.")
@take("--backend", "--pair", "--target", "--draft", "--option")
@click.option("--measurement-runs", type=RUNS, metavar="N", help="Rounds per prompt set (overrides the scenario).")
@click.option(
    "--margin-pct",
    type=PERCENT,
    default=2.0,
    show_default=True,
    metavar="PERCENT",
    help="Difference that an A/A run must exclude.",
)
@click.option(
    "--processes",
    type=click.IntRange(1, 100),
    default=5,
    show_default=True,
    metavar="N",
    help="Engine processes; their spread is measured with 2 or more.",
)
@take("--out", "--plain", "--debug")
def calibrate(**options: Any) -> None:
    """Measure this machine's noise with an A/A run, and write the noise profile.

    \b
    Example: specgate machine calibrate --scenario cpu-1k-single

    In an A/A run, both blocks of a pair have the same role, so that every difference is noise. The profile
    (noise/<device>.json beside the folder of runs) holds the smallest difference that this machine can tell. From then
    on, policies with smaller margins are refused.

    What differs between processes cannot be seen within one. It is measured over --processes engine processes, and
    becomes part of every interval of a speed verdict. Without it, verdicts assume 0.52 %.

    Exit code 4 if the A/A run does not exclude a difference of --margin-pct: this machine is then too noisy to judge.
    """
    from specgate.planning.request import Request
    from specgate.run import calibration

    margin_pct, processes = options.pop("margin_pct"), options.pop("processes")
    request = Request(kind="micro", argv=tuple(sys.argv[1:]), **options)
    sys.exit(calibration.calibrate(request, margin_pct, processes))
