"""Differences between a run and the last green run before it, in fingerprint and environment."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from specgate.analysis.environment_diff import differences
from specgate.contract import LastGreen, Run
from specgate.errors import SpecgateError
from specgate.files.config import Config
from specgate.files.run_folder import RunFolder
from specgate.files.writing import without_home
from specgate.promotion.claim import subject_of
from specgate.promotion.green_runs import GREEN, time_of
from specgate.promotion.ledger import Entry


def previous_green(run: Run, config: Config, entries: Iterable[Entry]) -> Entry | None:
    """The entry of the last green run with the same kind and subject that ended before `run` started, or None."""
    started, subject = datetime.fromisoformat(run.started), subject_of(config)
    same = [e for e in entries if e.run != run.id and e.kind == run.kind and e.subject == subject]
    # `max` takes the first of equals; times are whole seconds, and the later line is the later run.
    return max((e for e in reversed(same) if e.state in GREEN and time_of(e) <= started), key=time_of, default=None)


def compared(run: Run, green: Entry | None, folder: Path) -> LastGreen | None:
    """Return what differs between `run`, which has ended, and the green run, whose run folder lies in `folder`.

    None if there is no green run. The differences are None if its run folder cannot be read.
    """
    if green is None:
        return None
    try:
        before = RunFolder.open(folder / green.run, read_only=True).read_run()
    except SpecgateError:  # moved away, or of another schema
        return LastGreen(green.run, green.time, None)
    return LastGreen(green.run, green.time, tuple(differences(compared_facts(before), compared_facts(run))))


def compared_facts(run: Run) -> dict[str, object]:
    """The fingerprint and the environment of a run, as they are stored."""
    facts: dict[str, object] = json.loads(without_home(json.dumps({"fingerprint": run.fingerprint, **run.environment})))
    return facts
