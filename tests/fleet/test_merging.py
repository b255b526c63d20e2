"""Merging a node's samples: files that are taken in, and files that are refused."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from specgate.analysis.rounds import whole_rounds
from specgate.contract import Block, EngineFacts, Plan
from specgate.errors import InvalidResult, OrderRefused
from specgate.files.journal import PointEngine
from specgate.files.run_folder import RunFolder
from specgate.fleet.machines import Files, NodeLost
from specgate.fleet.merging import engines_of, log_name, merge
from specgate.fleet.tasks import Done, Task, only
from specgate.machine.monitor import line_of
from tests.support.factories import blocks_of, plan_of, run_of, scenario
from tests.support.surroundings import sample


def plan() -> Plan:
    return plan_of(scenario(context=(16, 24), batch=(1,)))


def facts() -> EngineFacts:
    return next(iter(run_of(plan(), blocks_of(plan())).engines.values()))


def task(point: int, first: int = 0) -> Task:
    return Task((plan().points[point].key,), first)


def part(
    folder: Path, job: Task, measured: Task | None = None, engine: EngineFacts | None = None
) -> tuple[Files, Done]:
    """Return the files of a node that was given `job` and has measured `measured`."""
    made = RunFolder.create(folder, "micro", "part", "0" * 64)
    points = (measured or job).points
    for point in points:
        made.append(PointEngine(point, engine or facts()))
    for block in blocks_of(plan()):
        if block.point.key in points:
            made.append(replace(block, worker_generation=(measured or job).first_generation))
    with made.watch_file.open("w") as out:
        for _ in range(2):
            out.write(line_of(sample(0, worker_generation=(measured or job).first_generation)))
    files = {f"samples/{file.name}": file.read_bytes() for file in (made.path / "samples").iterdir()}
    data = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    return {**files, "logs/worker-0.log": b"said\n", "logs/rescoring.log": b"said\n"}, Done(data)


def whole(folder: Path) -> RunFolder:
    return RunFolder.create(folder, "micro", "whole", "0" * 64)


def take(files: Files, done: Done, job: Task, run: RunFolder) -> int:
    return merge(job, files, done, run, plan(), lambda engine: None, engines_of(run))


def test_tasks_together_are_the_run(tmp_path: Path) -> None:
    run, expected = whole(tmp_path), list[Block]()
    for number, first in enumerate((0, 1000)):
        files, done = part(tmp_path, task(number, first))
        assert take(files, done, task(number, first), run) == len(blocks_of(plan())) // 2
        mine = [b for b in blocks_of(plan()) if b.point == plan().points[number]]
        expected += [replace(block, worker_generation=first) for block in mine]
    assert run.lines(Block) == expected and run.engines().keys() == {point.key for point in plan().points}
    assert sorted(file.name for file in (run.path / "logs").iterdir()) == [
        "rescoring-0.log",
        "rescoring-1000.log",
        "worker-0.log",
    ]


def test_a_point_that_is_measured_anew_counts_as_the_newer_machine_measured_it(tmp_path: Path) -> None:
    run, job = whole(tmp_path), task(0)
    for first in (0, 1000):
        files, done = part(tmp_path, task(0, first))
        take(files, done, task(0, first), run)
    judged = [block for block in whole_rounds(only(plan(), job.points), run.lines(Block)) if not block.warmup]
    assert {block.worker_generation for block in judged} == {1000}
    assert len(judged) == sum(not block.warmup for block in blocks_of(only(plan(), job.points)))


def test_samples_that_nothing_watched_are_lost(tmp_path: Path) -> None:
    files, done = part(tmp_path, task(0))
    kept = {name: content for name, content in files.items() if name != "samples/environment.jsonl"}
    data = {name: sha for name, sha in done.samples.items() if name in kept}
    run = whole(tmp_path)
    with pytest.raises(NodeLost, match="its monitor has watched nothing"):
        take(kept, Done(data), task(0), run)
    assert not run.lines(Block)


def test_half_a_line_is_refused_before_anything_is_taken_in(tmp_path: Path) -> None:
    files, _ = part(tmp_path, task(0))
    torn = {**files, "samples/engines.jsonl": files["samples/engines.jsonl"][:-1]}
    data = {name: hashlib.sha256(content).hexdigest() for name, content in torn.items() if name.startswith("samples")}
    run = whole(tmp_path)
    with pytest.raises(InvalidResult):
        take(torn, Done(data), task(0), run)
    assert not run.lines(Block) and not run.engines()


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("logs/worker-3.log", "worker-3.log"),
        ("logs/vllm-spec-3.log", "vllm-spec-3-1000.log"),
        ("logs/node.log", "node-1000.log"),
    ],
)
def test_logs_of_two_tasks_do_not_overwrite_each_other(name: str, kept: str) -> None:
    assert log_name(name, task(0, 1000)) == kept


def test_samples_that_changed_on_their_way_are_refused(tmp_path: Path) -> None:
    files, done = part(tmp_path, task(0))
    name = "samples/blocks.jsonl"
    with pytest.raises(InvalidResult, match="not those that the node wrote"):
        take({**files, name: files[name].replace(b"50000000", b"50000001", 1)}, done, task(0), whole(tmp_path))


@pytest.mark.parametrize("lacking", ["samples/blocks.jsonl", "samples/engines.jsonl"])
def test_samples_that_are_missing_are_refused(tmp_path: Path, lacking: str) -> None:
    files, done = part(tmp_path, task(0))
    with pytest.raises(InvalidResult, match="not those that the node wrote"):
        take({name: c for name, c in files.items() if name != lacking}, done, task(0), whole(tmp_path))


def test_samples_of_another_task_are_refused(tmp_path: Path) -> None:
    files, done = part(tmp_path, task(0), measured=task(1))
    with pytest.raises(InvalidResult, match="is not planned"):
        take(files, done, task(0), whole(tmp_path))


def test_engine_processes_of_another_task_are_refused(tmp_path: Path) -> None:
    files, done = part(tmp_path, task(0), measured=task(0, 1000))
    with pytest.raises(InvalidResult, match=r"engine processes \[1000\] are none of this task's"):
        take(files, done, task(0), whole(tmp_path))


@pytest.mark.parametrize(
    ("message", "engine"),
    [
        ("target_sha256: another", replace(facts(), target_sha256="another")),
        ("device: NVIDIA H100", replace(facts(), device="NVIDIA H100")),
    ],
)
def test_other_weights_and_other_devices_are_not_mixed(tmp_path: Path, message: str, engine: EngineFacts) -> None:
    run = whole(tmp_path)
    take(*part(tmp_path, task(0)), task(0), run)
    files, done = part(tmp_path, task(1, 1000), engine=engine)
    with pytest.raises(InvalidResult, match=f"(?s){message}, but .* need the same weights"):
        take(files, done, task(1, 1000), run)
    assert {block.point for block in run.lines(Block)} == {plan().points[0]}, "nothing of it was taken in"


def test_an_engine_that_the_run_may_not_be_measured_with_is_refused(tmp_path: Path) -> None:
    def admit(engine: EngineFacts) -> None:
        raise OrderRefused("its micro gates are not green")

    files, done = part(tmp_path, task(0))
    run = whole(tmp_path)
    with pytest.raises(OrderRefused):
        merge(task(0), files, done, run, plan(), admit, {})
    assert not run.lines(Block)
