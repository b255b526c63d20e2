"""A stored run computed again from its samples, and where run.json, gates.json and env.json say anything else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from specgate.archive.report_comparison import differences_of
from specgate.contract import Plan, Run
from specgate.files.config import Config
from specgate.files.json_record import stored_json
from specgate.files.json_text import to_plain
from specgate.files.manifest import Difference
from specgate.files.run_folder import RunFolder
from specgate.files.run_schema import SCHEMA, SCHEMA_VERSION
from specgate.planning.plan import build_plan
from specgate.run import early_stop
from specgate.run.ending import stored_run
from specgate.run.recompute import ending, judge, judgement, loaded, speculation_blocks, with_figures

_TREE_IN_NAME: Final = re.compile(r"-([0-9a-f]{8})-[0-9a-f]{6}$")
"""The beginning of the source tree's hash in the name of a run (`RunFolder.create`)."""


def recompute(folder: RunFolder) -> tuple[Run, Plan, Config]:
    """The run with figures and verdicts computed anew from its samples, its plan without rounds that were not run
    because a point stopped early, and its configuration.
    """
    config = folder.read_config()
    plan = build_plan(tuple(config.scenarios.values()), config.backend)
    stored = stored_run(folder, config)
    run = judge(with_figures(stored, plan, config.policy, folder.journal()), config.policy)
    if stored.files:  # a run that never ended has none
        run = replace(run, files=folder.evidence_hashes())
    return run, early_stop.truncated_plan(plan, run.ended_early), config


def result_differences(folder: RunFolder, run: Run, plan: Plan, config: Config) -> Iterator[Difference]:
    """Yield the places where run.json and gates.json differ from what was recomputed."""
    again = {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        **to_plain(Run, run),
        "eagle_speculation": speculation_blocks(run, plan, folder.journal()),
    }
    yield from differences_of("run.json", stored_json(folder.path / "run.json"), again)
    if run.status == "complete" and (wanting := [c.cell.key for c in run.cells if c.status != "ok"]):
        yield Difference("run.json", "status", f"complete; recomputed: {', '.join(wanting)} is not")
    gates = stored_json(folder.path / "gates.json")
    yield from differences_of("gates.json", gates, judgement(run, config.policy, ending(run)))


def fingerprint_differences(folder: RunFolder, run: Run, config: Config) -> Iterator[Difference]:
    """Yield where run.json contradicts the files about configuration, environment and engines.

    Reports are compared line by line only if this source tree has written them, so a source tree that is stated in the
    fingerprint alone must not be believed. The name of a run holds the beginning of its source tree too.
    """
    source: Any = run.environment.get("source")
    tree = source.get("tree_sha256") if isinstance(source, dict) else None
    stated = {
        "config_sha256": (config.digest, "config.resolved.yaml"),
        "source_tree_sha256": (tree, "source.tree_sha256 in env.json"),
    }
    if run.ended is not None:  # before its end, a run does not know its engines
        stated |= {key: (value, "samples/engines.jsonl") for key, value in loaded(run.engines).items()}
    for key, (value, origin) in stated.items():
        if run.fingerprint.get(key) != value:
            yield Difference("run.json", f"fingerprint.{key}", f"{run.fingerprint.get(key)}; {origin} gives {value}")
    yield from differences_of("env.json", stored_json(folder.path / "env.json"), run.environment)
    yield from package_differences(run)
    yield from device_differences(run)
    named = _TREE_IN_NAME.search(run.id)
    if named and not str(tree).startswith(named[1]):
        yield Difference("run.json", "id", f"{run.id}; {stated['source_tree_sha256'][1]} is {tree}")


def package_differences(run: Run) -> Iterator[Difference]:
    """Packages and interpreter of the fingerprint that env.json states otherwise, or not at all."""
    packages: Any = run.environment.get("packages")
    python: Any = run.environment.get("python")
    for key, stated in run.fingerprint.items():
        kind, _, name = key.partition(":")
        if kind == "package" and isinstance(packages, dict) and packages.get(name, stated) != stated:
            yield Difference("run.json", f"fingerprint.{key}", f"{stated}; env.json has {packages.get(name)}")
        if key == "interpreter" and isinstance(python, dict):
            interpreter = f"{python.get('implementation')} {python.get('version')} "
            if not str(stated).startswith(interpreter):
                yield Difference("run.json", f"fingerprint.{key}", f"{stated}; env.json has {interpreter.strip()}")


def device_differences(run: Run) -> Iterator[Difference]:
    """Engines that state an NVIDIA GPU which the environment does not have."""
    gpus: Any = run.environment.get("gpus") or []
    names = {str(gpu.get("name")) for gpu in gpus if isinstance(gpu, dict)}
    for key, facts in run.engines.items():
        if facts.device.startswith("NVIDIA ") and facts.device not in names:
            known = ", ".join(sorted(names)) or "no GPU"
            yield Difference("run.json", f"engines.{key}.device", f"{facts.device}; env.json has {known}")
