"""Load stored runs for the commands that show or compare them. Nothing in a run folder is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from specgate.analysis.rounds import whole_rounds
from specgate.archive.recomputation import recompute
from specgate.contract import Block, Policy, Run
from specgate.errors import InvalidResult, UsageError
from specgate.files.config import Config
from specgate.files.manifest import MANIFEST, listings, manifest_differences
from specgate.files.run_folder import RunFolder
from specgate.planning.plan import build_plan
from specgate.promotion.ending import refuse_cut
from specgate.run import early_stop
from specgate.run.recompute import judge


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run that was loaded from its folder `path`, and the configuration that it was made with."""

    path: Path
    run: Run
    config: Config

    @property
    def policy(self) -> Policy:
        return self.config.policy

    def blocks(self) -> list[Block]:
        """The blocks behind the run's figures: those of whole measured rounds, without warm-up."""
        plan = build_plan(tuple(self.config.scenarios.values()), self.config.backend)
        recorded = RunFolder.open(self.path, read_only=True).lines(Block)
        return [
            b for b in whole_rounds(early_stop.truncated_plan(plan, self.run.ended_early), recorded) if not b.warmup
        ]


def load_run(path: Path) -> StoredRun:
    """Load the run in the folder `path`. For a run that never ended, figures are computed from its finished blocks.

    Raises UsageError if `path` is not a run folder, and NotEnded if its ending was cut. Raises InvalidResult if the run
    cannot be read, or if a file is not the one that the manifest lists.
    """
    folder = RunFolder.open(path, read_only=True)
    refuse_cut(path)
    if not (path / MANIFEST).is_file():
        if folder.read_run().status != "running":
            hint = "every run that has ended has one: without it, nothing vouches for the files"
            raise InvalidResult(f"{path}: {MANIFEST} is missing", hint=hint)
        return load_unended(folder)
    listed = listings(path / MANIFEST)
    if changed := [d for d in manifest_differences(path) if d.file in listed]:
        hint = f"a run that was changed afterwards is not shown; specgate runs verify {path} names every place"
        raise InvalidResult(f"{path}: {changed[0]}", hint=hint)
    return StoredRun(path, folder.read_run(), folder.read_config())


def load_unended(folder: RunFolder) -> StoredRun:
    """Load a run whose process was killed, with the figures of the blocks that its journal holds."""
    try:
        run, _, config = recompute(folder)
    except (ValueError, LookupError, TypeError, ArithmeticError) as error:
        raise InvalidResult(f"{folder.path}: its blocks cannot be read: {error}") from error
    run = replace(run, status="interrupted", failures={"run": "it never ended", **run.failures})
    return StoredRun(folder.path, judge(run, config.policy), config)


def load_runs(paths: Sequence[Path]) -> list[StoredRun]:
    """Load several runs. Raises UsageError if two of `paths` hold the same run, and whatever `load_run` raises."""
    runs = [load_run(path) for path in paths]
    for i, one in enumerate(runs):
        for other in runs[:i]:
            if one.run.id == other.run.id:
                raise UsageError(f"{other.path} and {one.path} are the same run: {one.run.id}", hint="give it once")
    return runs
