"""A run as it was left, for the commands that show or compare stored runs. Nothing in its folder is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from specgate.analysis.rounds import whole_rounds
from specgate.archive.verification import MANIFEST, listings, manifest_differences, recompute
from specgate.core import Block, Policy, Run
from specgate.errors import InvalidResult, UsageError
from specgate.files.config import Config
from specgate.files.run_folder import RunFolder
from specgate.planning.plan import build_plan
from specgate.run import early_stop


@dataclass(frozen=True, slots=True)
class Stored:
    path: Path
    run: Run
    config: Config

    @property
    def policy(self) -> Policy:
        return self.config.policy

    def blocks(self) -> list[Block]:
        """The measured blocks that the figures of the run rest on."""
        plan = build_plan(tuple(self.config.scenarios.values()), self.config.backend)
        found = RunFolder.open(self.path, read_only=True).blocks()
        return [b for b in whole_rounds(early_stop.truncated_plan(plan, self.run.ended_early), found) if not b.warmup]


def stored(path: Path) -> Stored:
    """The run in the folder `path`; of one that never ended, what its finished blocks amount to.

    Raises UsageError where `path` is no run folder, InvalidResult where it cannot be read or a file of it is not the
    one that the manifest lists.
    """
    folder = RunFolder.open(path, read_only=True)
    if not (path / MANIFEST).is_file():
        if folder.read_run().status != "running":
            hint = "every run that has ended has one: without it, nothing vouches for the files"
            raise InvalidResult(f"{path}: {MANIFEST} is missing", hint=hint)
        return unended(folder)
    listed = listings(path / MANIFEST)
    if changed := [d for d in manifest_differences(path) if d.file in listed]:
        hint = f"a run that was changed afterwards is not shown; specgate verify {path} names every place"
        raise InvalidResult(f"{path}: {changed[0]}", hint=hint)
    return Stored(path, folder.read_run(), folder.read_config())


def unended(folder: RunFolder) -> Stored:
    """A run whose process was killed, as far as its journal goes."""
    try:
        run, _, config = recompute(folder)
    except (ValueError, LookupError, TypeError, ArithmeticError) as error:
        raise InvalidResult(f"{folder.path}: its blocks cannot be read: {error}") from error
    return Stored(folder.path, replace(run, failures={"run": "it never ended", **run.failures}), config)


def several(paths: Sequence[Path]) -> list[Stored]:
    """Different runs. Raises UsageError where two of `paths` are one run, and whatever `stored` raises."""
    found = [stored(path) for path in paths]
    for i, one in enumerate(found):
        for other in found[:i]:
            if one.run.id == other.run.id:
                raise UsageError(f"{other.path} and {one.path} are the same run: {one.run.id}", hint="give it once")
    return found
