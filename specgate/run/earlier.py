"""The last green run that each scenario of a run is held against: found when the run begins, and checked later."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path

from specgate.contract import Run
from specgate.contract.references import Earlier, EarlierRun
from specgate.errors import SpecgateError
from specgate.files.config import Config
from specgate.files.manifest import MANIFEST, Difference, listings
from specgate.files.plain_data import to_plain
from specgate.files.run_folder import RunFolder
from specgate.files.writing import sha256_of
from specgate.planning.gates import needs_earlier_run
from specgate.promotion.claim import machine_fingerprint, subject_of
from specgate.promotion.green_runs import GREEN, time_of
from specgate.promotion.ledger import Entry, Ledger
from specgate.promotion.standing import doubts, folder_of

MACHINE = ("gpu_uuid", "host")
"""Keys of the fingerprint that say which machine it was: the GPU, or else the host."""


def earlier_runs(config: Config, ledger: Ledger, began: datetime) -> Earlier | None:
    """Scenario → the last green run of it that ended before `began`, or why there is none.

    It must have the kind and subject of `config` and this machine, and the ledger's entry must be believed
    (`promotion.standing`). None where the policy does not ask. Raises InvalidResult if the ledger was changed.
    """
    if not needs_earlier_run(config.policy):
        return None
    subject, here, doubt = subject_of(config), machine_fingerprint(config.policy), doubts(ledger)
    entries = ledger.read().entries
    green = [e for e in entries if e.kind == config.kind and e.subject == subject and e.state in GREEN]
    green = [e for _, e in sorted(enumerate(green), key=lambda at: (time_of(at[1]), at[0]), reverse=True)]
    runs: dict[str, EarlierRun] = {}
    missing: dict[str, str] = {}
    for name in config.scenarios:
        mine = [e for e in green if name in e.gates and time_of(e) <= began]
        latest = newest(name, mine, {key: here.get(key) for key in MACHINE}, ledger, doubt)
        if isinstance(latest, EarlierRun):
            runs[name] = latest
        else:
            missing[name] = latest
    return Earlier(runs, missing)


def newest(
    name: str,
    entries: Sequence[Entry],
    here: dict[str, str | None],
    ledger: Ledger,
    doubt: Callable[[Entry], str | None],
) -> EarlierRun | str:
    """The first of `entries`, newest first, that the scenario `name` can be held against; else why there is none."""
    why = "no earlier green run"
    elsewhere = [e for e in entries if any(e.fingerprint.get(key) != here[key] for key in MACHINE)]
    for entry in entries:
        if entry in elsewhere:
            continue
        folder = folder_of(entry, ledger)
        unfit = "its run folder is missing" if folder is None else doubt(entry)
        candidate = unfit if folder is None or unfit else read(name, folder, entry.time, entry.manifest_sha256)
        if isinstance(candidate, EarlierRun):
            return candidate
        why = f"no earlier green run can be used; {entry.run}: {candidate}"
    if elsewhere and len(elsewhere) == len(entries):
        return f"no earlier green run on this machine: {elsewhere[0].run} ran on another, and is not compared with"
    return why


def read(name: str, folder: Path, time: str, manifest_sha256: str | None) -> EarlierRun | str:
    """Copy of the scenario `name` of the run in `folder`, to compare with; else the reason that there is none."""
    if not (folder / "run.json").is_file():
        return "its run.json is missing"
    if sha256_of(folder / "run.json") != listings(folder / MANIFEST).get("run.json"):
        return f"its run.json is not the one that {MANIFEST} lists"
    try:
        run = RunFolder.open(folder, read_only=True).read_run()
    except SpecgateError as error:
        return str(error)
    if name not in run.scenarios or not run.times:
        return "it kept no times: it was made before its policy asked for them"
    return facts_of(name, run, time, manifest_sha256 or "")


def facts_of(name: str, run: Run, time: str, manifest_sha256: str) -> EarlierRun:
    """Copy the scenario `name` of `run`."""
    source = run.environment.get("source")
    stated = source if isinstance(source, dict) else {}
    points = {c.cell.point.key for c in run.cells if c.cell.point.scenario == name}
    facts = next((facts for key, facts in run.engines.items() if key in points), None)
    return EarlierRun(
        run=run.id,
        time=time,
        manifest_sha256=manifest_sha256,
        commit=None if stated.get("dirty") else stated.get("commit"),
        scenario=run.scenarios[name],
        target_sha256=facts.target_sha256 if facts else None,
        draft_sha256=facts.draft_sha256 if facts else None,
        device=facts.device if facts else None,
        prompts={key: str(about["sha256"]) for key, about in run.prompts.items() if key in points},
        cells={
            c.cell.key: run.times[c.cell.key]
            for c in run.cells
            if c.cell.point.key in points and c.cell.key in run.times
        },
    )


def earlier_differences(path: Path, run: Run) -> Iterator[Difference]:
    """Yield where the copies of earlier runs in the run folder `path` differ from the runs that still lie beside it."""
    for name, copied in (run.earlier.runs if run.earlier else {}).items():
        folder, where = path.absolute().parent / copied.run, f"earlier.runs.{name}"
        if Path(copied.run).name != copied.run or not (folder / MANIFEST).is_file():
            continue
        if (sha256_now := sha256_of(folder / MANIFEST)) != copied.manifest_sha256:
            yield Difference(
                "run.json", f"{where}.manifest_sha256", f"{copied.manifest_sha256}; {folder.name} has {sha256_now}"
            )
            continue
        again = read(name, folder, copied.time, copied.manifest_sha256)
        if isinstance(again, str):
            yield Difference("run.json", where, f"{copied.run}: {again}")
        elif to_plain(EarlierRun, again) != to_plain(EarlierRun, copied):
            yield Difference("run.json", where, f"is not what the folder of {copied.run} says")
