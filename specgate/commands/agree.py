"""`specgate agree`: do other engines write the same texts as a reference engine, and accept as many drafts?"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from specgate.commands.compare import RUN, rendered
from specgate.commands.numbers import Real
from specgate.commands.output import OUT_OPTION, PLAIN_OPTION, is_plain, write_files
from specgate.planning.bounds import PARAMETER
from specgate.terminal import echo


@click.command(short_help="Compare other engines' texts and acceptance with a reference.")
@click.argument("reference", type=RUN)
@click.argument("runs", nargs=-1, required=True, type=RUN, metavar="RUN...")
@click.option(
    "--margin",
    type=Real(0, 100),
    default=3.0,
    show_default=True,
    metavar="PERCENT",
    help="How far acceptance may lie from the reference's, either way.",
)
@click.option(
    "--near-tie",
    type=Real(0, PARAMETER),
    metavar="LOGITS",
    help="Gap of the two largest logits below which texts may differ (default: the reference's policy).",
)
@click.option("--offline", is_flag=True, help="Load no engine to find near ties.")
@click.option("--html", is_flag=True, help="Write agreement.html.")
@click.option("--md", is_flag=True, help="Write agreement.md.")
@click.option("--csv", is_flag=True, help="Write agreement.csv, a row per figure.")
@click.option("--json", "as_json", is_flag=True, help="Write agreement.json, with every divergence.")
@OUT_OPTION
@PLAIN_OPTION
def agree(
    reference: Path,
    runs: tuple[Path, ...],
    margin: float,
    near_tie: float | None,
    offline: bool,
    html: bool,
    md: bool,
    csv: bool,
    as_json: bool,
    out: Path,
    plain: bool,
) -> None:
    """Compare full runs RUN... of other engines with the full run REFERENCE.

    Texts are compared token by token. Where they differ, the reference's engine is loaded again and asked whether its
    two largest logits were a near tie. Acceptance is compared by draft position, on the prompts whose texts are the
    same.

    Exit code 0 if all figures are proven to be within the margin, 1 if one is proven to be outside or a text differs
    without a near tie, 3 if there are too few prompts to tell.
    """
    from specgate import plugins
    from specgate.analysis.verdict import overall_of_agreement
    from specgate.archive.agreeing import agreement_of
    from specgate.archive.near_ties import with_margins
    from specgate.archive.stored import load_runs
    from specgate.contract import NearTies
    from specgate.contract.agreement import Agreement
    from specgate.files.plain import to_plain
    from specgate.planning.gates import near_ties

    first, *others = load_runs((reference, *runs))
    agreement = agreement_of([first, *others], margin)
    if not offline:
        tie = near_ties(first.policy) if near_tie is None else NearTies(near_tie)
        with TemporaryDirectory(prefix="specgate-") as logs:
            agreement = with_margins(agreement, first, tie, Path(logs))
    view = plugins.view("agreement")
    echo(view.render(agreement, "plain" if is_plain(plain) else "console"), coloured=True)
    write_files(out, rendered(view, agreement, html=html, md=md, csv=csv))
    if as_json:
        text = json.dumps(to_plain(Agreement, agreement), indent=1, ensure_ascii=False) + "\n"
        write_files(out, [("agreement.json", text)])
    sys.exit(overall_of_agreement(agreement)[1])
