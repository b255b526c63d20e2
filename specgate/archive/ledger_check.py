"""A stored run beside its entry in the ledger: what contradicts, and what stays open where there is none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from specgate.contract import Run
from specgate.contract.two_builds import TwoBuilds
from specgate.errors import InvalidResult
from specgate.files.manifest import MANIFEST, Difference
from specgate.files.writing import sha256_of
from specgate.promotion.green_runs import GREEN
from specgate.promotion.ledger import Entry, Ledger
from specgate.promotion.signing import signer
from specgate.run.ending import recorded_as

FILE = "../ledger.jsonl"


def ledger_differences(path: Path, run: Run, signers: Path | None) -> tuple[list[Difference], list[str]]:
    """(where the run's entry in the ledger beside it contradicts the run, what is worth knowing about the entry).

    `signers`: the file of allowed signers by one of whom the entry must be signed; None if it need not be.
    """
    try:
        entry = last_entry(path, run)
    except InvalidResult as error:
        return [Difference(FILE, "", str(error))], []
    if entry is None:
        return _without_entry(path, signers)
    differences = [*entry_differences(path, run, entry), *signature_differences(entry, signers)]
    return differences, signature_notes(entry, signers, differences)


def signature_notes(entry: Entry, signers: Path | None, differences: Sequence[Difference]) -> list[str]:
    """Notes on the signature of an entry that has `differences`."""
    if signers is None:
        signed = (
            "its entry is signed, but no --allowed-signers says whose keys are believed"
            if entry.signature
            else "its entry is not signed"
        )
        return [f"{signed}: whoever can write to both the folder and the ledger can make them agree"]
    if not differences and entry.signature:
        return [f"the ledger entry is signed by {signer(entry.signature, signers, entry.time)}"]
    return []


def _without_entry(path: Path, signers: Path | None) -> tuple[list[Difference], list[str]]:
    beside = "has no entry of this run" if (path.absolute().parent / "ledger.jsonl").is_file() else "is not there"
    if signers is not None:
        return [Difference(FILE, "", f"{beside}: no signature vouches for it")], []
    open_ = "that the manifest is the one the run ended with cannot be checked, nor can samples, environment and times"
    return [], [f"the ledger beside the run {beside}: {open_}"]


def entry_differences(path: Path, run: Run, entry: Entry) -> list[Difference]:
    """List the contradictions between the entry and the run folder: manifest, state and exit code."""
    where, differences = f"{FILE} ({entry.run})", []
    manifest = sha256_of(path / MANIFEST) if (path / MANIFEST).is_file() else None
    if manifest != entry.manifest_sha256:
        differences.append(Difference(where, "manifest_sha256", f"{entry.manifest_sha256}; {MANIFEST} has {manifest}"))
    if "run" in run.failures:  # the run was stopped, and the ledger has the exit code of what stopped it
        if entry.state in GREEN:
            differences.append(
                Difference(where, "state", f"{entry.state}; the run was stopped before it had a verdict")
            )
        return differences
    state, code = recorded_as(run, None)
    if entry.exit_code != code:
        differences.append(Difference(where, "exit_code", f"{entry.exit_code}; recomputed: {int(code)}"))
    if entry.state is not state:
        differences.append(Difference(where, "state", f"{entry.state}; recomputed: {state}"))
    return differences


def comparison_differences(
    path: Path, result: TwoBuilds | None, signers: Path | None
) -> tuple[list[Difference], list[str]]:
    """As `ledger_differences`, for the newest entry of the comparison in the folder `path`.

    `result`: as it was recomputed, or None.
    """
    try:
        entries = Ledger(path.absolute().parent).read().entries
    except InvalidResult as error:
        return [Difference(FILE, "", str(error))], []
    entry = next((e for e in reversed(entries) if e.run == path.absolute().name), None)
    if entry is None:
        return _without_entry(path, signers)
    where, differences = f"{FILE} ({entry.run})", []
    manifest = sha256_of(path / MANIFEST) if (path / MANIFEST).is_file() else None
    if manifest != entry.manifest_sha256:
        differences.append(Difference(where, "manifest_sha256", f"{entry.manifest_sha256}; {MANIFEST} has {manifest}"))
    if result is not None and entry.exit_code != result.code:
        differences.append(Difference(where, "exit_code", f"{entry.exit_code}; recomputed: {int(result.code)}"))
    differences += signature_differences(entry, signers)
    return differences, signature_notes(entry, signers, differences)


def signature_differences(entry: Entry, signers: Path | None) -> list[Difference]:
    """Reasons that the entry's signature is not an allowed signer's; [] if it is, or if none is asked for."""
    if signers is None:
        return []
    where = f"{FILE} ({entry.run})"
    if entry.signature is None:
        return [Difference(where, "signature", "is missing: nobody has signed the entry")]
    try:
        signer(entry.signature, signers, entry.time)
    except InvalidResult as error:
        return [Difference(where, "signature", error.message)]
    return []


def last_entry(path: Path, run: Run) -> Entry | None:
    """The last entry of the run in the ledger beside its folder, or None."""
    entries = Ledger(path.absolute().parent).read().entries
    return next((e for e in reversed(entries) if e.run == run.id), None)
