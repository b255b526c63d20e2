"""`specgate calibrate`: what can this machine tell apart?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from specgate.commands.run import key_value


@click.command(short_help="Measure this machine's noise: what can it tell apart?")
@click.option("--backend", metavar="NAME", help="Engine to measure (default: the best one usable here).")
@click.option("--scenario", "scenarios", multiple=True, required=True, metavar="FILE|NAME", help="Micro scenario.")
@click.option("--pair", metavar="NAME|DIR", help="Pair to measure: a name, or a folder of `pairs plant`.")
@click.option("--target", type=click.Path(path_type=Path), metavar="DIR", help="Target checkpoint (HF folder).")
@click.option("--draft", type=click.Path(path_type=Path), metavar="DIR", help="EAGLE-3 draft checkpoint (HF folder).")
@click.option("--measurement-runs", type=click.IntRange(1), metavar="N", help="Rounds per prompt set (overrides).")
@click.option(
    "--margin-pct",
    type=click.FloatRange(0, min_open=True),
    default=2.0,
    show_default=True,
    metavar="PERCENT",
    help="Difference that an A/A run must exclude.",
)
@click.option("--option", "-o", "options", multiple=True, metavar="KEY=VALUE", help="Back-end option; may be repeated.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs"), metavar="DIR", help="Parent of runs.")
@click.option("--plain", is_flag=True, help="Plain lines instead of tables and progress bars.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def calibrate(**options: Any) -> None:
    """Run a scenario with the same role in both places of every pair (A/A), and write the noise passport.

    The passport, noise/<device>.json beside the folder of runs, holds what this machine can tell apart; policies with
    margins below that are refused from then on. Ends with 4 where the A/A run does not exclude a difference of
    --margin-pct: this machine is too noisy to judge.
    """
    from specgate.planning.request import Request
    from specgate.run import calibration

    plain = options.pop("plain") or not (sys.stdout and sys.stdout.isatty())
    options.pop("debug")
    margin_pct = options.pop("margin_pct")
    options["options"] = dict(key_value(o) for o in options["options"])
    request = Request(kind="micro", argv=tuple(sys.argv[1:]), plain=plain, **options)
    sys.exit(calibration.calibrate(request, margin_pct))
