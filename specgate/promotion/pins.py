"""Pinned runs: the anchor that later runs of a subject are compared with, in place of the best one before them.

A pin is an entry of the ledger like any other, with the subject, the fingerprint and the manifest of the run that it
names, and so is the end of a pin. The last entry of a kind of run, a subject and a machine counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

from specgate.errors import UsageError
from specgate.files.run_folder import RunFolder
from specgate.machine import host
from specgate.promotion.green_runs import GREEN
from specgate.promotion.ledger import Entry, Ledger
from specgate.promotion.standing import doubts, folder_of

MACHINE: Final = ("gpu_uuid", "host")
"""Keys of the fingerprint that say which machine it was: the GPU, or else the host."""

Key = tuple[str, tuple[tuple[str, str], ...], tuple[str | None, ...]]
"""The kind of a run, its subject and its machine."""


def key_of(kind: str, subject: Mapping[str, str], fingerprint: Mapping[str, str | None]) -> Key:
    """Return what runs have in common that are compared with each other."""
    return kind, tuple(sorted(subject.items())), tuple(fingerprint.get(key) for key in MACHINE)


def pins(entries: Iterable[Entry]) -> dict[Key, Entry]:
    """The pins that count, by what they are for."""
    kinds: dict[str, str] = {}
    current: dict[Key, Entry] = {}
    for entry in entries:
        if entry.ends_a_run:
            kinds[entry.run] = entry.kind
        elif entry.run in kinds:
            key = key_of(kinds[entry.run], entry.subject, entry.fingerprint)
            current.pop(key, None)
            current |= {key: entry} if entry.kind == "pin" else {}
    return current


def pin(path: Path, archives: tuple[Path, ...] = ()) -> tuple[Entry, Entry | None]:
    """Pin the run in the folder `path`, in the ledger beside it. Returns the entry, and the pin that it replaces.

    Raises UsageError for a run that later ones cannot be compared with, or that is pinned already.
    """
    ledger, of_run = ledger_and_entry(path, archives)
    if of_run.state not in GREEN:
        raise UsageError(f"{path}: it ended with {of_run.state}", hint="only a green run can be pinned")
    if why := "its run folder is missing" if folder_of(of_run, ledger) is None else doubts(ledger)(of_run):
        raise UsageError(f"{path}: {why}", hint="pin a run that counts: specgate full --status names them")
    if not RunFolder.open(path, read_only=True).read_run().times:
        hint = "pin a run of a policy with a rule of the gate since-green"
        raise UsageError(f"{path}: it kept no times of its blocks: later runs cannot be compared with it", hint=hint)
    before = pins(ledger.read().entries).get(key_of(of_run.kind, of_run.subject, of_run.fingerprint))
    if before is not None and before.run == of_run.run:
        raise UsageError(f"{path}: it has been pinned since {before.time}", hint=f"specgate runs unpin {path}")
    return entered(ledger, of_run, "pin"), before


def unpin(path: Path, archives: tuple[Path, ...] = ()) -> Entry:
    """End the pin of the run in the folder `path`, which may be gone. Raises UsageError if it is not pinned."""
    ledger = Ledger(path.absolute().parent, archives)
    current = [entry.run for entry in pins(ledger.read().entries).values()]
    if path.name not in current:
        others = f"pinned in {ledger.file}: {', '.join(current) or 'none'}"
        raise UsageError(f"{path}: it is not pinned", hint=others)
    of_run = next(e for e in reversed(ledger.read().entries) if e.run == path.name)
    return entered(ledger, of_run, "unpin")


def ledger_and_entry(path: Path, archives: tuple[Path, ...]) -> tuple[Ledger, Entry]:
    """The ledger beside the run folder `path`, and its last entry of that run. Raises UsageError if it has none."""
    if not path.is_dir():
        raise UsageError(f"{path}: no such run folder", hint="name the folder of a run, such as runs/RUN")
    ledger = Ledger(path.absolute().parent, archives)
    name = path.absolute().name
    entry = next((e for e in reversed(ledger.read().entries) if e.run == name and e.ends_a_run), None)
    if entry is None or entry.kind == "ab":
        what = "has no entry of it" if entry is None else "says that it is a comparison of two builds"
        raise UsageError(f"{path}: {ledger.file} {what}", hint="only a run that ended beside its ledger can be pinned")
    return ledger, entry


def entered(ledger: Ledger, of_run: Entry, kind: Literal["pin", "unpin"]) -> Entry:
    """Enter the pin of a run, or its end."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    entry = replace(of_run, kind=kind, time=now, host=host.identity(), override=None, not_judged=())
    ledger.append(entry)
    return entry
