"""Check a run folder offline: its manifest first, then every figure, verdict and table, recomputed from the samples.

Recomputed are `run.json` (cells, comparisons, engines, verdicts, warnings and whatever else follows from `samples/`),
`gates.json`, and every report. Taken as given are the samples themselves, the environment, the hashes of the prompts
and the times of the run. The manifest vouches for these, and so does the hash of the manifest that the ledger holds, if
the ledger lies beside the run. Nothing is written: a run on a read-only mount can be verified.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from specgate.archive.drawing_ahead import drawing_ahead
from specgate.archive.ledger_check import ledger_differences
from specgate.archive.recomputing import recompute, result_differences
from specgate.archive.report_comparison import report_differences
from specgate.contract import Run
from specgate.errors import SpecgateError
from specgate.files.manifest import LOCK, MANIFEST, Difference, listings, manifest_differences, odd_files
from specgate.files.run_folder import RunFolder
from specgate.run.compared_builds import builds_differences
from specgate.run.earlier import earlier_differences


@dataclass(frozen=True, slots=True)
class Verification:
    """What checking a run folder found.

    `run`: the run as it was recomputed, or None if it could not be. `files`: how many files the manifest lists.
    `notes`: what is no contradiction, but worth knowing.
    """

    run: Run | None
    files: int
    differences: tuple[Difference, ...]
    notes: tuple[str, ...]


def verify(path: Path, signers: Path | None = None) -> Verification:
    """Check the run folder `path`. Nothing is written.

    `signers`: the file of allowed signers by one of whom the ledger's entry must be signed; None if it need not be.
    Raises UsageError if `path` is not a run folder or `signers` cannot be read, and EnvironmentRefused where signatures
    cannot be checked.
    """
    folder = RunFolder.open(path, read_only=True)
    differences = list(manifest_differences(path))
    notes: list[str] = []
    run: Run | None = None
    listed = path / MANIFEST
    files = len(listings(listed)) if listed.is_file() else 0
    if grounds := unusable_grounds(path, differences):
        notes.append(f"figures were not recomputed, since their grounds were changed: {', '.join(grounds)}")
        return Verification(None, files, tuple(differences), tuple(notes))
    try:
        with drawing_ahead(folder) as ahead:
            run, plan, config = recompute(folder)
            differences += result_differences(folder, run, plan, config)
            if blind := sum(block.span_ns is None for block in folder.journal().blocks):
                notes.append(
                    f"the engine's clock was not checked in {blind} blocks: they were stored without the harness's"
                )
            found, said = report_differences(path, run, config, ahead)
        differences += found
        notes += said
    except (SpecgateError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        # Samples that have the right form but break the arithmetic cannot have been measured.
        differences.append(Difference(path.name, "", f"cannot be recomputed: {error}"))
    if run is not None:
        differences += [*earlier_differences(path, run), *builds_differences(path, run)]
        found, said = ledger_differences(path, run, signers)
        differences += found
        notes += said
    return Verification(run, files, tuple(differences), tuple(notes))


def unusable_grounds(path: Path, differences: list[Difference]) -> list[str]:
    """Files that no figure may be computed from: samples and configuration that were changed, and no plain files."""
    changed = [d.file for d in differences if d.file == "config.resolved.yaml" or d.file.startswith("samples/")]
    return list(dict.fromkeys((*changed, *(d.file for d in odd_files(path) if d.file != LOCK))))
