"""Run folders for tests, written as a run writes them, from computed blocks."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from specgate.archive.stored_runs import StoredRun
from specgate.contract import Block, Plan, Run, Scenario
from specgate.files.config import Config
from specgate.files.journal import PointEngine
from specgate.files.manifest import MANIFEST
from specgate.files.run_folder import RunFolder
from specgate.planning.plan import build_plan
from specgate.promotion.ledger import Ledger
from specgate.run.ending import decide
from specgate.run.ending import store as store_ending
from specgate.run.resuming import without_figures
from tests.support.factories import POLICY, blocks_of, judged, run_of, scenario


def store(
    folder: Path,
    *,
    scenarios: Sequence[Scenario] = (scenario(),),
    backend: str = "fake",
    blocks: Sequence[Block] | None = None,
    changes: dict[str, Any] | None = None,
    options: Mapping[str, str] | None = None,
    **how: Any,
) -> Path:
    """Write the run folder `folder` with `blocks`, or with those that `blocks_of` makes from `how`.

    `changes` are fields of the run. `options`: those of its back end.
    """
    plan = build_plan(tuple(scenarios), backend)
    made = list(blocks if blocks is not None else blocks_of(plan, **how))
    run = judged(run_of(plan, made, **{"id": folder.name, "kind": scenarios[0].kind, **(changes or {})}), POLICY)
    config = Config(run.kind, backend, run.pair, POLICY, plan.scenarios, options=options or {})
    (folder / "samples").mkdir(parents=True)
    stored = RunFolder(folder)
    stored.write_config(config)
    for block in made:
        stored.append(block)
    for key, facts in run.engines.items():
        stored.append(PointEngine(key, facts))
    as_ended(stored, run, plan, config)
    return folder


def as_ended(folder: RunFolder, run: Run, plan: Plan, config: Config) -> None:
    """Write what a run writes at its end, with no ledger beside it."""
    run, decided = decide(run, plan, config, folder)
    store_ending(folder, replace(decided, entry=None), run, config, Ledger(folder.path.parent))


def as_if_killed(folder: Path, blocks: int | None = None) -> None:
    """Leave of a stored run what a `kill -9` after its first `blocks` blocks, or after all, leaves, with no ledger."""
    journal = folder / "samples" / "blocks.jsonl"
    journal.write_text("".join(journal.read_text().splitlines(keepends=True)[:blocks]))
    stored = RunFolder(folder)
    run = without_figures(stored.read_run())
    stored.write_json("env.json", run.environment)
    stored.write_run(run)
    for file in (*folder.glob("*.csv"), *folder.parent.glob("ledger.*"), *folder.glob("summary.md")):
        file.unlink()
    for name in (MANIFEST, "gates.json", "report.html", "junit.xml"):
        (folder / name).unlink(missing_ok=True)


def changed(one: StoredRun, **changes: Any) -> StoredRun:
    """The loaded run with other fields."""
    return replace(one, run=replace(one.run, **changes))


def change_json(file: Path, change: Callable[[Any], object]) -> None:
    data = json.loads(file.read_text())
    change(data)
    file.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n")


def change_block(folder: Path, change: Callable[[Any], object], number: int = -1) -> None:
    """Change a block of a run's journal: the last one, if no number is given."""
    file = folder / "samples" / "blocks.jsonl"
    lines = file.read_text().splitlines()
    data = json.loads(lines[number])
    change(data)
    lines[number] = json.dumps(data, separators=(",", ":"))
    file.write_text("\n".join([*lines, ""]))


def rewrite(folder: Path, run: Run) -> None:
    """Replace the stored run by `run`, with a manifest that agrees."""
    stored = RunFolder(folder)
    stored.write_run(replace(run, id=folder.name))
    stored.write_manifest()
