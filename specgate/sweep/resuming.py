"""A sweep that goes on after it was cut off: settings keep the process pairs that they had."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from specgate.ab.folder import AbFolder
from specgate.ab.request import AbRequest, builds
from specgate.ab.resuming import refuse_changes
from specgate.ab.session import asked_of
from specgate.contract.sweeps import SWEEP, Setting, Sweep
from specgate.errors import UsageError
from specgate.files.json_record import read_record
from specgate.files.writing import without_home
from specgate.sweep.grid import in_words
from specgate.sweep.measuring import Candidate, reduce


def stored_sweep(file: Path, settings: Sequence[Setting]) -> Sweep:
    """Read the sweep in `file`, which goes on with these settings.

    Raises UsageError if nothing was measured, if its best setting is found already, or if it has other settings.
    """
    stored = read_record(Sweep, file, SWEEP)
    if stored is None:
        hint = "the folder that the sweep printed; one that has measured nothing begins anew, without --resume"
        raise UsageError(f"{file.parent} has no {file.name}", hint=hint)
    if stored.best is not None:
        hint = "another final comparison would be another chance: begin a new sweep"
        raise UsageError(f"{file}: it has ended: {stored.verdict}", hint=hint)
    were = [dict(trial.made_by or trial.config) for trial in stored.trials]
    now = [{name: without_home(value) for name, value in setting.items()} for setting in settings]
    if were != now:
        other = next((s for s in (*were, *now) if s not in were or s not in now), were[0])
        hint = "--resume goes with the command line that the sweep was begun with"
        raise UsageError(f"{file}: its settings are others, such as {in_words(other)}", hint=hint)
    return stored


def restored(setting: Setting, stored: Sweep, number: int, folder: Path) -> Candidate:
    """The candidate of `setting`, with the samples of trial `number` of the sweep in `folder`."""
    trial, candidate = stored.trials[number], Candidate(setting)
    if trial.made_by:
        files = {name: Path(value).expanduser() for name, value in trial.config.items()}
        if not all(file.is_file() for file in files.values()):
            return candidate
        candidate.setting, candidate.made_by = {name: str(file) for name, file in files.items()}, setting
    if trial.folder is not None:
        candidate.folder = AbFolder.open(folder / trial.folder, read_only=False)
        candidate.asked = candidate.folder.asked()
        reduce(candidate)
    return candidate


def refuse_another(candidates: Sequence[Candidate], comparison: Callable[[Setting], AbRequest]) -> None:
    """Raise UsageError, with all differences, if engine, machine, prompts or scenarios are not what they were."""
    for candidate in candidates:
        if candidate.folder is not None and candidate.asked is not None:
            request = comparison(candidate.setting)
            with builds(request, Path()) as sides:
                again, _ = asked_of(request, sides)
            refuse_changes(candidate.folder.path, candidate.asked, again)
            return  # all others differ from it in their settings alone
