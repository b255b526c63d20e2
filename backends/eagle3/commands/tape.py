"""`specgate engine tape`: record how many drafts each cycle of a run accepted."""

from __future__ import annotations

from pathlib import Path

import click

from specgate.commands.door import command
from specgate.terminal import echo


@command(short_help="Record a run's accept counts, to replay them elsewhere.")
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--point", metavar="KEY", help="Point to record, if the run has several.")
def tape(run: Path, file: Path, point: str | None) -> None:
    """Write the accept counts of the run folder RUN to FILE: how many draft tokens each cycle accepted.

    \b
    Example: specgate engine tape RUN tape.json

    `--option tape=FILE` replays them in another run. Its draft and verify passes take the time they take, but each
    cycle accepts what the tape says. The tokens are then wrong, so such a run is labelled `acceptance: forced` and
    satisfies no gate on acceptance or tokens. Only its speed has a meaning: `--policy speed-only`.
    """
    from specgate.archive.tape import tape_of
    from specgate.contract.acceptance import AcceptanceRecord

    recorded = tape_of(run, point)
    recorded.save(file)
    echo(f"tape {file}: {len(recorded.prompts)} prompt sets of {recorded.origin['point']}")
    for k, sets in recorded.specs.items():
        rows = [[count] for slots in sets for counts in slots for count in counts]
        record = AcceptanceRecord.from_steps(k, rows, [[k]] * len(rows), 0, 0)
        echo(f"  spec-{k}: acceptance length {record.acceptance_length:.3f} over {record.steps} cycles")
