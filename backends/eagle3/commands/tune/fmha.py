"""`specgate engine tune fmha`: find the tiling of attention that decodes fastest here, and keep it for engines."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from specgate.commands.door import command
from specgate.commands.numbers import BUDGET
from specgate.commands.options import take
from specgate.commands.sweep import carried_out, sweep
from specgate.errors import EnvironmentRefused, ExitCode
from specgate.terminal import echo

if TYPE_CHECKING:
    from specgate.backends.eagle3.nouns.fmha import AttentionConfig

DEMO: Final = ("micro-16k-b4", "micro-32k-single")
PLANTED: Final = ("micro-8b-16k-b4", "micro-8b-32k-single")
"""Scenarios that are swept by default: on the demo pair if it is installed, else on planted pairs. In either case one
has batch 4 and one a single request, since the engine's default tiles differ between the two.
"""


@command(short_help="Find the fastest tiling of attention, and keep it.")
@take("--scenario", "--pair", "--option", "--out", "--plain", "--debug")
@click.option("--budget", type=BUDGET, default="1h", show_default=True, metavar="TIME", help="For each scenario.")
def fmha(
    scenarios: tuple[str, ...],
    pair: str | None,
    options: tuple[str, ...],
    out: Path,
    plain: bool,
    debug: bool,
    budget: float,
) -> None:
    """Sweep the configurations of attention that are worth trying, scenario by scenario, and keep each best one.

    \b
    Example: specgate engine tune fmha --pair NAME

    Each is an `engine sweep` over the option fmha of the built-in engine. A configuration that is proven faster than
    today's goes into the user's cache, and engines for such a pair, batch and context take it from there. -o
    fmha=KNOB:N,… or another sweep's FILE overrides it.

    Exit code: the largest of the sweeps'.
    """
    from specgate.backends.eagle3.cupy.kernels.attention.fmha_config import CANDIDATES
    from specgate.backends.eagle3.lib.specpv import SPECPV
    from specgate.backends.eagle3.nouns.fmha import FMHA, best_of, keep, read_sweep

    values = [text_of(asdict(config)) for config in CANDIDATES]
    named = {option.partition("=")[0] for option in options}
    counted = [] if named & {"tile_stats", "tp", SPECPV} else ["-o", "tile_stats=on"]
    shared = [word for option in options for word in ("-o", option)] + (["--pair", pair] if pair else [])
    shared += ["--budget", f"{budget:g}", "--out", str(out), *(["--plain"] if plain else [])]
    codes = []
    for scenario in scenarios or usual_scenarios():
        words = ["--backend", "cupy", *counted, "--scenario", scenario, *shared]
        code, file = carried_out(sweep.make_context("sweep", words), {FMHA: values})
        codes.append(code)
        if best_of(swept := read_sweep(file)) is not None:
            echo(f"kept for engines: {keep(swept)}")
    sys.exit(max(codes, default=ExitCode.PASS))


def usual_scenarios() -> tuple[str, ...]:
    """Return the scenarios of the demo pair if it is installed, else those of planted pairs."""
    from specgate.pairs.resolve import resolve_pair

    try:
        resolve_pair(None, None, None)
    except EnvironmentRefused:
        return PLANTED
    return DEMO


def text_of(config: AttentionConfig) -> str:
    """A configuration as the option has it: `kv_tile:512,warps:4`."""
    return ",".join(f"{knob}:{value}" for knob, value in config.items())
