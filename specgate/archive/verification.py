"""Check a run folder offline: its manifest first, then every figure, verdict and table, recomputed from the samples.

Recomputed are `run.json` (cells, comparisons, engines, verdicts, warnings and whatever else follows from `samples/`),
`gates.json`, and every report. Taken as given are the samples themselves, the environment, the hashes of the prompts
and the times of the run. The manifest vouches for these, and so does the hash of the manifest that the ledger holds, if
the ledger lies beside the run. Nothing is written: a run on a read-only mount can be verified.

A run of another source tree holds where every figure comes out as stored. Where one does not, only the source tree that
made the run can tell: that is said, and the run neither holds nor is called wrong. A run of another schema is not
recomputed at all.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from specgate import plugins
from specgate.ab.folder import FILES, FOLDERS, RESULT, AbFolder, is_comparison, result_json
from specgate.ab.judging import result_of
from specgate.analysis.verdict import overall
from specgate.archive.recomputation import fingerprint_differences, recompute, result_differences
from specgate.archive.report_comparison import (
    differences_of,
    foreign_files,
    line_differences,
    made_here,
    missing_reports,
    report_differences,
)
from specgate.contract import Block, Run
from specgate.contract.two_builds import TwoBuilds
from specgate.errors import InvalidResult, OtherVersion, SpecgateError, UsageError
from specgate.files.json_record import read_record, stored_json
from specgate.files.json_text import to_plain
from specgate.files.manifest import LOCK, MANIFEST, Difference, listings, manifest_differences, odd_files, vouched
from specgate.files.run_folder import RUN, RunFolder, is_run
from specgate.files.run_schema import made_by, refuse_other_schema, that_version
from specgate.files.writing import sha256_of
from specgate.machine import inventory
from specgate.machine.noise_profile import SCHEMA as NOISE_SCHEMA
from specgate.machine.noise_profile import NoiseProfile
from specgate.promotion.ending import cut_in_words
from specgate.promotion.ledger import Entry, Ledger
from specgate.run.calibration import recomputed
from specgate.run.resuming import last_entry as newest_entry
from specgate.run.resuming import never_ended, resume_command

NOISE: Final = "noise.json"

R = TypeVar("R", Run, TwoBuilds, NoiseProfile)


@dataclass(frozen=True, slots=True)
class Verification(Generic[R]):
    """Result of checking the folder of a run, a comparison or a calibration.

    `result`: it as it was recomputed, or None if it could not be.
    `files`: how many files the manifest lists.
    `notes`: what is no contradiction, but worth knowing.
    `untold`: where a result of another source tree is not what this one computes; that tree has to tell who is right.
    `next_step`: how to ask that tree.
    """

    result: R | None
    files: int
    differences: tuple[Difference, ...]
    notes: tuple[str, ...] = ()
    untold: tuple[Difference, ...] = ()
    next_step: str = ""


def verify_builds(path: Path) -> Verification[TwoBuilds]:
    """Check the comparison in the folder `path`.

    Raises UsageError if there is none, and OtherVersion for one of another schema.
    """
    folder = AbFolder.open(path)
    differences, notes = list(manifest_differences(path, FOLDERS)), list[str]()
    files = listed_files(path)
    try:
        request = folder.asked()
        result = result_of(folder, request, folder.journals(), folder.processes())
        again = list(differences_of(RESULT, folder.result(), result_json(result)))
        ours = request.begun_with.get("source_tree_sha256") == inventory.source_tree_sha256()
        pages = list(page_differences(path, result))
        differences += [d for d in pages if ours or not (path / d.file).is_file()]
        run = {"fingerprint": request.begun_with}
        if not ours:
            notes.append(f"the comparison was made by {made_by(run)}")
        if pages and not ours:
            notes.append("pages are not as this source tree would write them")
    except OtherVersion:
        raise
    except (SpecgateError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        # Samples that have the right form but break the arithmetic cannot have been measured.
        differences.append(Difference(path.name, "", f"cannot be recomputed: {error}"))
        return Verification(None, files, tuple(differences))
    if ours:
        return Verification(result, files, (*differences, *again), tuple(notes))
    return Verification(result, files, tuple(differences), tuple(notes), tuple(again), that_version(run))


def is_calibration(path: Path) -> bool:
    """Return whether `path` is the folder of a calibration that has ended, or of one of its further processes."""
    listed = listings(path / MANIFEST) if is_run(path) and (path / MANIFEST).is_file() else {RUN: ""}
    return RUN not in listed and not (path / RUN).is_file()


def verify_calibration(path: Path) -> Verification[NoiseProfile]:
    """Check the calibration in the folder `path`: its manifest, and the noise of every cell, recomputed from the
    samples. Means of further processes are taken as given. The folder of such a process has no profile: None.
    """
    differences, files = list(manifest_differences(path)), listed_files(path)
    stored = None if differences else read_record(NoiseProfile, path / NOISE, NOISE_SCHEMA)
    if stored is None:
        return Verification(None, files, tuple(differences))
    made = {"fingerprint": stored.fingerprint}
    ours = stored.fingerprint.get("source_tree_sha256") == inventory.source_tree_sha256()
    try:
        again = recomputed(RunFolder.open(path, read_only=True), stored)
    except (SpecgateError, ValueError, LookupError, TypeError, ArithmeticError) as error:
        return Verification(None, files, (Difference(path.name, "", f"cannot be recomputed: {error}"),))
    computed = tuple(differences_of(NOISE, to_plain(NoiseProfile, stored), to_plain(NoiseProfile, again)))
    if ours:
        return Verification(again, files, computed)
    note = f"the calibration was made by {made_by(made)}"
    return Verification(again, files, (), (note,), computed, that_version(made))


def page_differences(path: Path, result: TwoBuilds) -> Iterator[Difference]:
    """Yield the places where the stored pages say anything else than the same pages rendered again."""
    for format, file in FILES:
        if not (path / file).is_file():
            yield Difference(file, "", "is missing")
            continue
        stored, again = (path / file).read_text(encoding="utf-8"), plugins.view("ab").render(result, format)
        yield from line_differences(file, stored, again)


FILE = "../ledger.jsonl"


AGREE: Final = "whoever can write to both the folder and the ledger can make them agree"


def ledger_differences(path: Path, run: Run) -> tuple[list[Difference], list[str]]:
    """(where the run's entry in the ledger beside it contradicts the run, what is worth knowing about the entry)."""
    try:
        entry, of_name = (last_entry(path, name) for name in (run.id, path.absolute().name))
    except InvalidResult as error:
        return [Difference(FILE, "", str(error))], []
    if of_name is not None and of_name.run != run.id:
        why = f"{run.id}; the folder has the name of another run, which ended with {of_name.state} at {of_name.time}"
        return [Difference(RUN, "id", why)], []
    if entry is None:
        return _without_entry(path)
    return entry_differences(path, run, entry), [AGREE]


def _without_entry(path: Path) -> tuple[list[Difference], list[str]]:
    beside = "has no entry of this run" if (path.absolute().parent / "ledger.jsonl").is_file() else "is not there"
    open_ = "that the manifest is the one the run ended with cannot be checked, nor can samples, environment and times"
    return [], [f"the ledger beside the run {beside}: {open_}"]


def entry_differences(path: Path, run: Run, entry: Entry) -> list[Difference]:
    """List the contradictions between the entry and the run folder: manifest, state and exit code."""
    where, differences = f"{FILE} ({entry.run})", list[Difference]()
    differences += manifest_difference(path, entry)
    state, code = overall(run)
    if entry.exit_code != code:
        differences.append(Difference(where, "exit_code", f"{entry.exit_code}; recomputed: {int(code)}"))
    if entry.state is not state:
        differences.append(Difference(where, "state", f"{entry.state}; recomputed: {state}"))
    return differences


def manifest_difference(path: Path, entry: Entry) -> Iterator[Difference]:
    """Yield the manifest of the folder `path` where it is not the one that the entry names."""
    if not vouched(path / MANIFEST, entry.manifest_sha256):
        manifest = sha256_of(path / MANIFEST) if (path / MANIFEST).is_file() else None
        why = f"{entry.manifest_sha256}; {MANIFEST} has {manifest}"
        yield Difference(f"{FILE} ({entry.run})", "manifest_sha256", why)


def comparison_differences(path: Path, result: TwoBuilds | None) -> tuple[list[Difference], list[str]]:
    """As `ledger_differences`, for the newest entry of the comparison in the folder `path`.

    `result`: as it was recomputed, or None.
    """
    try:
        entries = Ledger(path.absolute().parent).read().entries
    except InvalidResult as error:
        return [Difference(FILE, "", str(error))], []
    entry = next((e for e in reversed(entries) if e.run == path.absolute().name and e.ends_a_run), None)
    if entry is None:
        return _without_entry(path)
    where, differences = f"{FILE} ({entry.run})", list(manifest_difference(path, entry))
    if result is not None and entry.exit_code != result.code:
        differences.append(Difference(where, "exit_code", f"{entry.exit_code}; recomputed: {int(result.code)}"))
    return differences, [AGREE]


def last_entry(path: Path, run: str) -> Entry | None:
    """The last entry of the run in the ledger beside the folder `path`, or None."""
    return newest_entry(Ledger(path.absolute().parent), run)


def unended(path: Path) -> str | None:
    """Sentence on the run or the comparison in the folder `path` whose ending was cut, or that never ended, with the
    command that brings it to its end; None where it has ended, or where the ledger or a manifest contradict that.

    Raises UsageError where there is neither.
    """
    folder = None if is_comparison(path) else RunFolder.open(path, read_only=True)
    if why := cut_in_words(path):
        return why
    if (path / MANIFEST).is_file():
        return None
    ledger = Ledger(path.absolute().parent)
    if folder is None:
        if not never_ended(path, ledger, FOLDERS):
            return None
        command = f"specgate ab --resume {shlex.quote(str(path))}"
    else:
        if stored_result(path).get("status") != "running" or not never_ended(path, ledger):
            return None
        command = resume_command(folder.read_run(), path)
    return f"it was ended from outside, without a verdict. {command} continues it"


def listed_files(path: Path) -> int:
    """How many files the manifest of the folder `path` lists."""
    return len(listings(path / MANIFEST)) if (path / MANIFEST).is_file() else 0


def verify(path: Path) -> Verification[Run]:
    """Check the run folder `path`, of a run that has ended (`unended`). Nothing is written.

    Raises UsageError if `path` is not a run folder, and OtherVersion for a run of another schema.
    """
    folder = RunFolder.open(path, read_only=True)
    if is_calibration(path):
        raise UsageError(f"{path}: a calibration, which has no verdict", hint="its noise.json has its result")
    differences = list(manifest_differences(path))
    if not any(difference.file == RUN for difference in differences):  # else an edited schema would excuse the rest
        refuse_other_schema(path)
    stored = stored_result(path)
    computed, notes = list[Difference](), list[str]()
    run: Run | None = None
    files = listed_files(path)
    if changed := changed_evidence(path, differences):
        notes.append(f"figures were not recomputed, since files behind them were changed: {', '.join(changed)}")
        return Verification(None, files, tuple(differences), tuple(notes))
    try:
        run, plan, config = recompute(folder)
        computed += result_differences(folder, run, plan, config)
        differences += fingerprint_differences(folder, run, config)
        differences += without_clock(folder.journal().blocks)
        report_problems, report_notes = report_differences(path, run, config)
        computed += report_problems
        notes += report_notes
        differences += [*missing_reports(path, run), *foreign_files(path, run)]
    except (SpecgateError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        # Samples that have the right form but break the arithmetic cannot have been measured.
        computed.append(Difference(path.name, "", f"cannot be recomputed: {error}"))
    if run is not None:
        report_problems, report_notes = ledger_differences(path, run)
        differences += report_problems
        notes += report_notes
    if made_here(stored):
        return Verification(run, files, (*differences, *computed), tuple(notes))
    computed = [d for d in computed if not d.later]
    if not computed:
        notes.append(f"the run was made by {made_by(stored)}")
    return Verification(run, files, tuple(differences), tuple(notes), tuple(computed), that_version(stored))


def without_clock(blocks: Sequence[Block]) -> Iterator[Difference]:
    """Blocks that the harness's own clock is missing of. Every run stores it."""
    if blind := sum(block.span_ns is None for block in blocks):
        why = f"is missing in {blind} block{'s' * (blind > 1)}: the engine's clock cannot be checked"
        yield Difference("samples/blocks.jsonl", "span_ns", why)


def stored_result(path: Path) -> Mapping[str, Any]:
    """The content of the run.json in `path`, unchecked; empty where it cannot be read."""
    try:
        data = stored_json(path / RUN)
    except InvalidResult:
        return {}
    return data if isinstance(data, dict) else {}


def changed_evidence(path: Path, differences: list[Difference]) -> list[str]:
    """Files that no figure may be computed from: samples and configuration that were changed, and no plain files."""
    changed = [d.file for d in differences if d.file == "config.resolved.yaml" or d.file.startswith("samples/")]
    return list(dict.fromkeys((*changed, *(d.file for d in odd_files(path) if d.file != LOCK))))
