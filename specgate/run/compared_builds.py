"""The comparisons of builds that a run rests on: found when the run begins, and checked later."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Final

from specgate.contract import Run
from specgate.contract.references import Builds, ComparedBuild, Revision
from specgate.errors import SpecgateError
from specgate.files.config import Config
from specgate.files.json_record import stored_json
from specgate.files.manifest import MANIFEST, Difference, listings
from specgate.files.writing import sha256_of
from specgate.machine import inventory
from specgate.machine.checkout import git
from specgate.planning.gates import bases_of
from specgate.promotion.claim import machine_fingerprint, subject_of
from specgate.promotion.green_runs import time_of
from specgate.promotion.ledger import Entry, Ledger
from specgate.promotion.standing import doubt_of_comparison, folder_of

MOST: Final = 16
"""Comparisons that are copied of one source tree, the newest."""
TREES: Final = 4
"""Source trees whose comparisons are copied beside those of this one: they say why none counts."""
MACHINE: Final = ("gpu_uuid", "host")
TREE: Final = "source_tree_sha256"


def compared_builds(config: Config, ledger: Ledger, began: datetime, checkout: Path) -> Builds | None:
    """The comparisons that rules of the policy may rest on, and the revisions that these name, in `checkout`.

    A comparison has the pair, back end and options of `config`, ran on this machine, ended before `began`, and is
    believed. None where no rule asks. Raises InvalidResult if the ledger was changed.
    """
    bases = bases_of(config.policy)
    if not bases:
        return None
    here, subject = machine_fingerprint(config.policy), without_policy(subject_of(config))
    entries = [
        entry
        for entry in reversed(ledger.read().entries)
        if entry.kind == "ab"
        and without_policy(entry.subject) == subject
        and all(entry.fingerprint.get(key) == here.get(key) for key in MACHINE)
        and time_of(entry) <= began
    ]
    by_run: dict[str, ComparedBuild] = {}
    of_tree: Counter[str | None] = Counter()
    this = inventory.source_tree_sha256()
    for entry in entries:
        tree = entry.fingerprint.get(TREE)
        if of_tree[tree] == MOST or (tree not in of_tree and tree != this and len(of_tree.keys() - {this}) == TREES):
            continue
        folder = folder_of(entry, ledger)
        if entry.run not in by_run and folder is not None and doubt_of_comparison(entry, ledger, folder) is None:
            copied = read(entry, folder)
            by_run |= {entry.run: copied} if copied else {}
            of_tree[tree] += copied is not None
    return Builds({base: revision_of(base, checkout) for base in bases}, tuple(by_run.values()))


def without_policy(subject: object) -> dict[str, str]:
    """A subject without the policy: two builds are compared by no policy."""
    assert isinstance(subject, dict)
    return {key: value for key, value in subject.items() if key != "policy"}


def revision_of(base: str, checkout: Path) -> Revision:
    """Resolve the revision `base` in `checkout`. A checkout of CI often has a branch as `origin/base` only."""
    for name in (base, f"origin/{base}"):
        commit = git(checkout, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
        if commit is not None:
            return Revision(commit, git(checkout, "merge-base", "HEAD", commit), name)
    return Revision(None, None, base)


def read(entry: Entry, folder: Path) -> ComparedBuild | None:
    """Copy of the comparison in `folder`; None if its ab.json is not the one that its manifest lists."""
    return copied_from(folder, entry.time, entry.manifest_sha256 or "", entry.fingerprint)


def copied_from(folder: Path, time: str, manifest_sha256: str, fingerprint: object) -> ComparedBuild | None:
    """As `read`."""
    file = folder / "ab.json"
    if not file.is_file() or sha256_of(file) != listings(folder / MANIFEST).get("ab.json"):
        return None
    stored = stored_json(file)
    assert isinstance(fingerprint, dict)
    if not isinstance(stored, dict):
        return None
    old = stored["sides"]["old"]
    return ComparedBuild(
        comparison=folder.name,
        time=time,
        manifest_sha256=manifest_sha256,
        base=None if old["changed"] else old["revision"],
        word=stored["word"],
        reason=str(stored["reason"]),
        scenarios=tuple(stored["scenarios"]),
        fingerprint=fingerprint,
    )


def builds_differences(path: Path, run: Run) -> Iterator[Difference]:
    """Yield where the copies of comparisons in the run folder `path` differ from the comparisons that still lie beside
    it.
    """
    for number, copied in enumerate(run.builds.compared if run.builds else ()):
        folder, where = path.absolute().parent / copied.comparison, f"builds.compared[{number}]"
        if Path(copied.comparison).name != copied.comparison or not (folder / MANIFEST).is_file():
            continue
        if (sha256_now := sha256_of(folder / MANIFEST)) != copied.manifest_sha256:
            if was_extended(folder, copied):
                continue
            hashes = f"{copied.manifest_sha256}; {folder.name} has {sha256_now}"
            yield Difference("run.json", f"{where}.manifest_sha256", hashes)
            continue
        try:
            again = copied_from(folder, copied.time, copied.manifest_sha256, dict(copied.fingerprint))
        except (SpecgateError, LookupError, TypeError) as error:
            yield Difference("run.json", where, f"{copied.comparison}: {error}")
            continue
        if again != copied:
            yield Difference("run.json", where, f"is not what the folder of {copied.comparison} says")


def was_extended(folder: Path, copied: ComparedBuild) -> bool:
    """True if the ledger knows the comparison as it was copied, and as one that went on since."""
    try:
        entries = [e for e in Ledger(folder.parent).read().entries if e.run == copied.comparison]
    except SpecgateError:
        return False
    known = [entry.manifest_sha256 for entry in entries]
    return copied.manifest_sha256 in known[:-1] and sha256_of(folder / MANIFEST) == known[-1]
