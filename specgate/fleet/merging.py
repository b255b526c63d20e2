"""The samples that a task left become the run's own: after they were read, and held to the plan."""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from specgate.contract import Block, EngineFacts, Plan
from specgate.contract.conditions import Sample
from specgate.errors import InvalidResult
from specgate.files.journal import JOURNALS
from specgate.files.run_folder import RunFolder
from specgate.files.writing import disk
from specgate.fleet.local import put
from specgate.fleet.machines import Files, NodeLost
from specgate.fleet.tasks import Done, Task, only
from specgate.promotion.claim import engine_fingerprint
from specgate.redaction import cleaned
from specgate.run.resuming import check_samples

LAST: Final = "samples/blocks.jsonl"
"""Blocks come last: a point whose blocks are there has everything else."""


Engines = dict[str, tuple[str, EngineFacts]]
"""Scenario → the point that was measured first, and its engine."""


def engines_of(folder: RunFolder) -> Engines:
    """The engines that the samples of a run were measured with so far."""
    engines: Engines = {}
    for point, facts in folder.engines().items():
        engines.setdefault(scenario_of(point), (point, facts))
    return engines


def merge(
    task: Task,
    files: Files,
    done: Done,
    folder: RunFolder,
    plan: Plan,
    admit: Callable[[EngineFacts], None],
    known: Engines,
) -> int:
    """Append the samples of a task to those of the run, and its engines to those that are `known`. Returns how many
    blocks it had.

    Raises NodeLost where nothing watched the machine meanwhile. Raises InvalidResult where the samples are not what the
    node says that it wrote, contradict themselves or are none of the task's; and what `admit` raises for an engine that
    the run may not be measured with.
    """
    journals = {name: content for name, content in files.items() if name in JOURNALS and content}
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in journals.items()}
    if digests != dict(done.samples):
        raise InvalidResult(f"{task.name}: the samples that arrived are not those that the node wrote")
    with tempfile.TemporaryDirectory(prefix="specgate-part-") as name:
        part = RunFolder(Path(name))
        put(part.path, {"config.resolved.yaml": b"", **journals})
        check_samples(part, only(plan, task.points))
        generations = {block.worker_generation for block in part.lines(Block)}
        if not generations <= set(task.generations):
            raise InvalidResult(f"{task.name}: engine processes {sorted(generations)} are none of this task's")
        blocks, engines = len(part.lines(Block)), part.engines()
        watched = {sample.worker_generation for sample in part.lines(Sample)}
    if blocks and watched != {task.first_generation}:
        raise NodeLost("its monitor has watched nothing")
    if torn := next((name for name, content in journals.items() if not content.endswith(b"\n")), None):
        raise InvalidResult(f"{task.name}: {torn}: does not end with a whole line")
    for facts in engines.values():
        admit(facts)
    refuse_unlike(engines, known)
    for name in sorted(journals, key=lambda name: (name == LAST, name)):
        folder.append_journal(name.removeprefix("samples/"), journals[name])
    for name, content in files.items():
        if name.startswith("logs/") and content:
            log = folder.log(log_name(name, task))
            with disk(log):
                log.write_bytes(cleaned(content.decode("utf-8", "replace")).encode())
    return blocks


def refuse_unlike(engines: Mapping[str, EngineFacts], known: Engines) -> None:
    """Raise InvalidResult where an engine loaded other weights, or ran on another kind of device, than the first one of
    its scenario.
    """
    for point, facts in engines.items():
        first, then = known.setdefault(scenario_of(point), (point, facts))
        before, now = engine_fingerprint(then), engine_fingerprint(facts)
        if changed := [key for key in {**before, **now} if before.get(key) != now.get(key)]:
            raise InvalidResult(
                f"{point}: {changed[0]}: {now.get(changed[0])}, but {before.get(changed[0])} at {first}",
                hint="the machines of a fleet need the same weights, devices and engines",
            )


def scenario_of(point: str) -> str:
    return point.partition("/")[0]


def log_name(name: str, task: Task) -> str:
    """The name of a node's log among those of the run: engine processes have numbers of their own, others get one."""
    stem, dot, suffix = name.removeprefix("logs/").partition(".")
    numbered = re.fullmatch(r"worker-\d+", stem)
    return name.removeprefix("logs/") if numbered else f"{stem}-{task.first_generation}{dot}{suffix}"
