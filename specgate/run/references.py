"""References of a run: the earlier run that it is judged against, and builds that were compared with its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Final

from specgate.analysis.references import anchors_after, clocks_of
from specgate.contract import Run
from specgate.contract.references import Builds, ComparedBuild, Earlier, EarlierRun, Revision
from specgate.errors import SpecgateError, UsageError
from specgate.files.config import Config
from specgate.files.json_record import stored_json
from specgate.files.manifest import MANIFEST, listings
from specgate.files.run_folder import RunFolder
from specgate.files.writing import sha256_of
from specgate.machine import inventory
from specgate.machine.checkout import git
from specgate.planning.gates import bases_of, needs_earlier_run
from specgate.promotion.claim import machine_fingerprint, subject_of
from specgate.promotion.green_runs import GREEN, time_of
from specgate.promotion.ledger import Entry, Ledger
from specgate.promotion.pins import MACHINE, Key, key_of, pins
from specgate.promotion.standing import doubt_of_comparison, doubts, folder_of


def earlier_runs(config: Config, ledger: Ledger, began: datetime) -> Earlier | None:
    """Scenario → the last green run of it that ended before `began`, or why there is none; and its anchors.

    It must have the kind and subject of `config` and this machine, and the ledger's entry must be believed
    (`promotion.standing`). None where the policy does not ask. Raises InvalidResult if the ledger was changed, and
    UsageError if a pinned run cannot be used.
    """
    if not needs_earlier_run(config.policy):
        return None
    here = key_of(config.kind, subject_of(config), machine_fingerprint(config.policy))
    return earlier_of(here, tuple(config.scenarios), ledger, began)


def earlier_of(here: Key, scenarios: Sequence[str], ledger: Ledger, began: datetime) -> Earlier:
    """Earlier runs of the kind, subject and machine of `here`; see `earlier_runs`."""
    entries, doubt = ledger.read().entries, doubts(ledger)
    green = [e for e in entries if (e.kind, tuple(sorted(e.subject.items()))) == here[:2] and e.state in GREEN]
    green = [e for _, e in sorted(enumerate(green), key=lambda at: (time_of(at[1]), at[0]), reverse=True)]
    pinned = pins(entries).get(here)
    runs: dict[str, EarlierRun] = {}
    missing: dict[str, str] = {}
    anchors: dict[str, tuple[EarlierRun, ...]] = {}
    for name in scenarios:
        anchor = pinned_run(name, pinned, ledger, doubt) if pinned is not None and name in pinned.gates else None
        latest = newest(name, [e for e in green if name in e.gates and time_of(e) <= began], here, ledger, doubt)
        if isinstance(latest, str):
            missing[name] = latest + pinned_elsewhere(name, pins(entries), here)
            continue
        entry, run = latest
        runs[name] = replace(facts_of(name, run, entry), pinned=anchor is not None and anchor.run == run.id)
        anchors[name] = anchors_after(name, run) if anchor is None else () if runs[name].pinned else (anchor,)
    return Earlier(runs, missing, {name: best for name, best in anchors.items() if best})


def pinned_run(name: str, entry: Entry, ledger: Ledger, doubt: Callable[[Entry], str | None]) -> EarlierRun:
    """The scenario `name` of the run that `entry` pins. Raises UsageError if it cannot be used."""
    run = usable(name, entry, ledger, doubt)
    if isinstance(run, str):
        hint = f"name the place of moved runs with --archive, or: specgate runs unpin {ledger.folder / entry.run}"
        raise UsageError(f"{entry.run} is pinned in {ledger.file}, and cannot be used: {run}", hint=hint)
    return replace(facts_of(name, run, entry), pinned=True)


def pinned_elsewhere(name: str, current: Mapping[Key, Entry], here: Key) -> str:
    """Return the end of a sentence on a run of the scenario that is pinned on this machine for another subject; empty
    if there is none.
    """
    for key, entry in current.items():
        if name in entry.gates and (key[0], key[2]) == (here[0], here[2]) and key != here:
            theirs, mine = dict(key[1]), dict(here[1])
            differing = [part for part in {**mine, **theirs} if mine.get(part) != theirs.get(part)]
            return f" ({entry.run} is pinned, and is of another subject: other {', '.join(differing)})"
    return ""


def newest(
    name: str, entries: Sequence[Entry], here: Key, ledger: Ledger, doubt: Callable[[Entry], str | None]
) -> tuple[Entry, Run] | str:
    """The first of `entries`, newest first, that the scenario `name` can be compared with; else why there is none."""
    why = "no earlier green run"
    elsewhere = [e for e in entries if key_of(e.kind, e.subject, e.fingerprint) != here]
    for entry in entries:
        if entry in elsewhere:
            continue
        candidate = usable(name, entry, ledger, doubt)
        if not isinstance(candidate, str):
            return entry, candidate
        why = f"no earlier green run can be used; {entry.run}: {candidate}"
    if elsewhere and len(elsewhere) == len(entries):
        return f"no earlier green run on this machine: {elsewhere[0].run} ran on another, and is not compared with"
    return why


def usable(name: str, entry: Entry, ledger: Ledger, doubt: Callable[[Entry], str | None]) -> Run | str:
    """The run that `entry` is of, to compare the scenario `name` with; else the reason why it cannot be."""
    folder = folder_of(entry, ledger)
    unfit = "its run folder is missing" if folder is None else doubt(entry)
    if folder is None or unfit:
        return unfit or ""
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
    return run


def facts_of(name: str, run: Run, entry: Entry) -> EarlierRun:
    """Copy the scenario `name` of `run`, which `entry` is of."""
    source = run.environment.get("source")
    stated = source if isinstance(source, dict) else {}
    points = {c.cell.point.key for c in run.cells if c.cell.point.scenario == name}
    facts = next((facts for key, facts in run.engines.items() if key in points), None)
    return EarlierRun(
        run=run.id,
        time=run.ended or entry.time,
        manifest_sha256=entry.manifest_sha256 or "",
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
        clocks={
            c.cell.key: clocks for c in run.cells if c.cell.point.key in points and (clocks := clocks_of(run, c.cell))
        },
    )


MOST: Final = 16
"""Comparisons that are copied of one source tree, the newest."""
TREES: Final = 4
"""Source trees whose comparisons are copied beside those of this one: they say why none counts."""
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
        if entry.run not in by_run and folder is not None and doubt_of_comparison(entry, folder) is None:
            copied = read_compared(entry, folder)
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


def read_compared(entry: Entry, folder: Path) -> ComparedBuild | None:
    """Copy of the comparison in `folder`; None if its ab.json is not the one that its manifest lists."""
    file = folder / "ab.json"
    if not file.is_file() or sha256_of(file) != listings(folder / MANIFEST).get("ab.json"):
        return None
    stored = stored_json(file)
    if not isinstance(stored, dict):
        return None
    old = stored["sides"]["old"]
    return ComparedBuild(
        comparison=folder.name,
        time=entry.time,
        manifest_sha256=entry.manifest_sha256 or "",
        base=None if old["changed"] else old["revision"],
        word=stored["word"],
        reason=str(stored["reason"]),
        scenarios=tuple(stored["scenarios"]),
        fingerprint=entry.fingerprint,
    )
