"""`specgate runs pin`, `unpin`: the anchor, which later runs are compared with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from specgate.commands.door import command
from specgate.terminal import echo

if TYPE_CHECKING:
    from specgate.promotion.ledger import Ledger
    from specgate.promotion.pins import Key

RUN = click.Path(path_type=Path)
ARCHIVES = click.option(
    "--archive", "archives", type=RUN, multiple=True, metavar="FOLDER", help="A place where run folders were moved to."
)


@command(short_help="Make a green run the anchor of later ones.")
@click.argument("run", type=RUN)
@ARCHIVES
def pin(run: Path, archives: tuple[Path, ...]) -> None:
    """Make the green run RUN the anchor that later runs of its subject on its machine are held against.

    \b
    Example: specgate runs pin runs/RUN

    Without a pin the anchor is the best green run. The ledger beside RUN keeps the pin.
    """
    from specgate.promotion.pins import pin

    entry, before = pin(run, archives)
    echo(f"pinned {entry.run}: the anchor of {', '.join(entry.gates)} for {in_words(entry.subject)}")
    if before is not None:
        echo(f"in place of {before.run}")


@command(short_help="Let the best green run be the anchor again.")
@click.argument("run", type=RUN)
@ARCHIVES
def unpin(run: Path, archives: tuple[Path, ...]) -> None:
    """End the pin of RUN, whose folder may be gone. The best green run is the anchor again.

    \b
    Example: specgate runs unpin runs/RUN
    """
    from specgate.promotion.pins import unpin

    echo(f"no longer pinned: {unpin(run, archives).run}")


def anchor_lines(ledger: Ledger, key: Key, scenarios: Sequence[str]) -> Iterator[str]:
    """The last green run and the anchor of each of `scenarios`, which the next run would be compared with."""
    from datetime import UTC, datetime

    from specgate.errors import UsageError
    from specgate.run.references import earlier_of

    try:
        earlier = earlier_of(key, scenarios, ledger, datetime.now(UTC))
    except UsageError as error:
        yield str(error)
        return
    for name in scenarios:
        if name not in earlier.runs:
            continue
        last, anchors = earlier.runs[name], earlier.anchors.get(name, ())
        yield f"{name}: last green {last.run} ({last.time[:10]}{', pinned' if last.pinned else ''})"
        for anchor in anchors:
            cells = "" if anchor.pinned else f", of {len(anchor.cells)} of {len(last.cells)} cells"
            yield f"  {'pinned' if anchor.pinned else 'best'} {anchor.run} ({anchor.time[:10]}{cells})"


def in_words(subject: Mapping[str, str]) -> str:
    """`policy cpu, pair demo, backend eagle3`."""
    return ", ".join(f"{key} {value}" for key, value in subject.items() if value)
