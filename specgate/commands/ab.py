"""`specgate ab`: an old and a new build of an engine, measured in turns in one session, and judged."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from specgate.commands.run import key_value

PERCENT = click.FloatRange(0, 100, min_open=True)


@click.command(short_help="Judge a change: two builds of an engine in one session.")
@click.option("--base", metavar="REF", help="Old side: this git revision of the checkout; new side: the checkout.")
@click.option("--build", metavar="COMMAND", help="Shell command that builds a checkout; run in both (with --base).")
@click.option("--package", metavar="DIR", help="Where a checkout's code lies (default: src, or the checkout).")
@click.option("--old", multiple=True, metavar="KEY=VALUE", help="The old side; may be repeated.")
@click.option("--new", multiple=True, metavar="KEY=VALUE", help="The new side; may be repeated.")
@click.option("--same", is_flag=True, help="Both sides are one build: an A/A check of this machine.")
@click.option("--backend", metavar="NAME", help="Engine of both sides (default: the best one usable here).")
@click.option("--scenario", "scenarios", multiple=True, metavar="FILE|NAME", help="What to measure; may be repeated.")
@click.option("--policy", metavar="FILE|NAME", help="Its micro scenarios and its token checks (default: by machine).")
@click.option("--pair", metavar="NAME|DIR", help="Pair to measure: a name, or a folder of `pairs plant`.")
@click.option("--target", type=click.Path(path_type=Path), metavar="DIR", help="Target checkpoint (HF folder).")
@click.option("--draft", type=click.Path(path_type=Path), metavar="DIR", help="EAGLE-3 draft checkpoint (HF folder).")
@click.option("--option", "-o", "options", multiple=True, metavar="KEY=VALUE", help="Back-end option of both sides.")
@click.option("--processes", "pairs", type=click.IntRange(1, 100), default=8, show_default=True, help="Per side.")
@click.option("--prompt-sets", "visits", type=click.IntRange(1, 100), default=1, show_default=True, help="Per process.")
@click.option(
    "--quads", type=click.IntRange(1, 100), default=2, show_default=True, help="A B B A per role and prompts."
)
@click.option("--steps", type=click.IntRange(1, 100_000), default=64, show_default=True, help="Most steps of a block.")
@click.option("--margin-pct", type=PERCENT, default=0.5, show_default=True, help="Step time: less is the same.")
@click.option("--prefill-margin-pct", type=PERCENT, default=2.0, show_default=True, help="Prefill time: likewise.")
@click.option("--acceptance-margin-pct", type=PERCENT, default=1.0, show_default=True, help="Acceptance: likewise.")
@click.option("--apart", is_flag=True, help="Never load both builds at once.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs"), metavar="DIR", help="Parent of folders.")
@click.option("--plain", is_flag=True, help="Plain lines instead of tables and progress bars.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def ab(**options: Any) -> None:
    """Measure an old and a new build of an engine in turns, and say whether the new one is SLOWER, FASTER or the SAME.

    A side is said by KEY=VALUE: source=DIR, a folder to import its code from; wheel=FILE; python=FILE, the interpreter
    of its environment; backend=NAME. Every other key is an option of its back end, such as url=… of a server.

    Exit codes: SAME and FASTER 0, SLOWER 1, CANNOT TELL 3.
    """
    from specgate.ab.request import AbRequest
    from specgate.ab.session import carry_out
    from specgate.core.two_builds import Margins

    plain = options.pop("plain") or not (sys.stdout and sys.stdout.isatty())
    options.pop("debug")
    margins = Margins(
        step_pct=options.pop("margin_pct"),
        prefill_pct=options.pop("prefill_margin_pct"),
        acceptance_pct=options.pop("acceptance_margin_pct"),
    )
    options["options"] = dict(key_value(o) for o in options["options"])
    for side in ("old", "new"):
        options[side] = tuple(key_value(o, f"--{side}") for o in options[side])
    sys.exit(carry_out(AbRequest(argv=tuple(sys.argv[1:]), plain=plain, margins=margins, **options)))
