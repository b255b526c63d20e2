"""`specgate engine tune drafts`: how many tokens to draft at each batch size, from measured runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from specgate.commands.door import command
from specgate.commands.numbers import CONTEXT
from specgate.commands.output import RUN
from specgate.terminal import echo

if TYPE_CHECKING:
    from specgate.backends.eagle3.tuning.chain_lengths import Choice


@command(short_help="Choose how many tokens to draft at each batch size.")
@click.argument("runs", nargs=-1, required=True, type=RUN, metavar="RUN...")
@click.option("--context", type=CONTEXT, help="Of which context (default: the runs' only one).")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("drafts_by_batch.yaml"),
    show_default=True,
    metavar="FILE",
    help="File for the table.",
)
def drafts(runs: tuple[Path, ...], context: int | None, out: Path) -> None:
    """Choose, for every batch size that RUN... measured, the draft length with the greatest speed-up.

    \b
    Example: specgate engine tune drafts RUN RUN --out FILE

    The runs are of one pair, engine and device; `--batch 1,4,16 --spec 1,2,3,5` measures what is chosen from. The
    reference engine and the built-in one take the file as -o k_by_batch=FILE, other engines the table by their own
    settings.
    """
    from specgate.archive.stored_runs import load_runs
    from specgate.backends.eagle3.tuning.chain_lengths import as_record, choices
    from specgate.files.writing import write_text
    from specgate.files.yamlfile import dump_yaml

    chosen = choices([stored.run for stored in load_runs(runs)], context)
    for line in lines(chosen):
        echo(line)
    write_text(out, dump_yaml(dict(as_record(chosen))))
    echo(f"wrote {out}")


def lines(chosen: Sequence[Choice]) -> Iterator[str]:
    """A line per batch size, for a terminal of 80 columns."""
    yield f"{'batch':>5} {'drafts':>6}  {'speed-up':<22} next best"
    for one in chosen:
        best, *others = (one.best, *one.others)
        span = f"{best.speedup:.3f} ({best.low:.3f}–{best.high:.3f})"
        beside = f"{others[0].drafts}: {others[0].speedup:.3f}" if others else "nothing else was measured"
        aside = "" if one.is_told else ", not told apart"
        yield f"{best.batch:>5} {best.drafts:>6}  {span:<22} {beside}{aside}"
    if dear := [str(one.best.batch) for one in chosen if not one.pays]:
        yield f"at batch {', '.join(dear)} speculation is not proven to pay at all"
