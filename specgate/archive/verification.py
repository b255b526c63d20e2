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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specgate.archive.background_rendering import drawing_ahead
from specgate.archive.ledger_check import ledger_differences
from specgate.archive.recomputation import fingerprint_differences, recompute, result_differences
from specgate.archive.report_comparison import foreign_files, made_here, missing_reports, report_differences
from specgate.contract import Block, Run
from specgate.errors import InvalidResult, SpecgateError
from specgate.files.json_record import stored_json
from specgate.files.manifest import LOCK, MANIFEST, Difference, listings, manifest_differences, odd_files
from specgate.files.run_folder import RUN, RunFolder
from specgate.files.run_schema import made_by, refuse_other_schema, that_version
from specgate.run.references import builds_differences, earlier_differences


@dataclass(frozen=True, slots=True)
class Verification:
    """Result of checking a run folder.

    `run`: the run as it was recomputed, or None if it could not be. `files`: how many files the manifest lists.
    `notes`: what is no contradiction, but worth knowing.
    `untold`: where a run of another source tree is not what this one computes; that tree has to tell who is right.
    `next_step`: how to ask that tree.
    """

    run: Run | None
    files: int
    differences: tuple[Difference, ...]
    notes: tuple[str, ...]
    untold: tuple[Difference, ...] = ()
    next_step: str = ""


def verify(path: Path, signers: Path | None = None) -> Verification:
    """Check the run folder `path`. Nothing is written.

    `signers`: the file of allowed signers by one of whom the ledger's entry must be signed; None if it need not be.
    Raises UsageError if `path` is not a run folder or `signers` cannot be read, OtherVersion for a run of another
    schema, and EnvironmentRefused where signatures cannot be checked.
    """
    folder = RunFolder.open(path, read_only=True)
    differences = list(manifest_differences(path))
    if not any(difference.file == RUN for difference in differences):  # else an edited schema would excuse the rest
        refuse_other_schema(path)
    stored = stored_result(path)
    computed, notes = list[Difference](), list[str]()
    run: Run | None = None
    listed = path / MANIFEST
    files = len(listings(listed)) if listed.is_file() else 0
    if changed := changed_evidence(path, differences):
        notes.append(f"figures were not recomputed, since files behind them were changed: {', '.join(changed)}")
        return Verification(None, files, tuple(differences), tuple(notes))
    try:
        with drawing_ahead(folder) as ahead:
            run, plan, config = recompute(folder)
            computed += result_differences(folder, run, plan, config)
            differences += fingerprint_differences(folder, run, config)
            differences += without_clock(folder.journal().blocks)
            report_problems, report_notes = report_differences(path, run, config, ahead)
        computed += report_problems
        notes += report_notes
        differences += [*missing_reports(path, run), *foreign_files(path, run)]
    except (SpecgateError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        # Samples that have the right form but break the arithmetic cannot have been measured.
        computed.append(Difference(path.name, "", f"cannot be recomputed: {error}"))
    if run is not None:
        differences += [*earlier_differences(path, run), *builds_differences(path, run)]
        report_problems, report_notes = ledger_differences(path, run, signers)
        differences += report_problems
        notes += report_notes
    if made_here(stored):
        return Verification(run, files, (*differences, *computed), tuple(notes))
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
