"""A coordinator's answers to tasks that are lost, stopped or refused. Its machines are made up here; real ones, whose
processes are killed, are in `test_fleet.py`.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from specgate.contract import Plan
from specgate.errors import BackendError, EnvironmentRefused, UsageError
from specgate.files.json_text import from_plain, parse_json, to_plain
from specgate.files.run_folder import RunFolder
from specgate.files.writing import json_text
from specgate.fleet import coordinator as coordinating
from specgate.fleet.coordinator import LOSSES, TRIES, Coordinator, Ended, Waiting, uninterrupted
from specgate.fleet.machines import Files, NodeLost, Slot
from specgate.fleet.session import in_words
from specgate.fleet.tasks import DONE, TASK, Done, Stop, Task
from tests.support.factories import plan_of, scenario
from tests.support.in_process import interruptible

Answer = Callable[[Slot, Task], Done | NodeLost]


class MadeUp:
    """Slots that answer as a test says."""

    def __init__(self, slots: int, answer: Answer) -> None:
        self.slots = tuple(Slot(f"slot {n}", str(n)) for n in range(slots))
        self.answer, self.asked = answer, list[tuple[str, tuple[str, ...]]]()
        self._lock, self.stopped = threading.Lock(), False

    def carry_out(self, slot: Slot, files: Files) -> Files:
        task = from_plain(Task, parse_json(files[TASK]), Path(TASK))
        with self._lock:
            self.asked.append((slot.name, task.points))
            answer = self.answer(slot, task)
        if isinstance(answer, NodeLost):
            raise answer
        return {DONE: json_text(to_plain(Done, answer)).encode()}

    def stop(self) -> None:
        self.stopped = True


def only(where: str, answer: Done | NodeLost) -> Answer:
    """`answer` from the slot or to the task of that name; everything else is measured."""
    return lambda slot, task: answer if where == slot.name or where in task.name else Done()


def plan() -> Plan:
    return plan_of(scenario(context=(16, 24, 32), batch=(1,)))


def coordinator(tmp_path: Path, machines: MadeUp) -> Coordinator:
    folder = RunFolder.create(tmp_path, "micro", "demo", "0" * 64)
    for name in ("config.resolved.yaml", "env.json", "run.json"):
        (folder.path / name).write_text("{}")
    return Coordinator(machines, folder, plan(), lambda facts: None, 0)


def measured(tmp_path: Path, machines: MadeUp) -> Coordinator:
    made = coordinator(tmp_path, machines)
    made.measure(plan().points)
    assert machines.stopped
    return made


def test_a_lost_task_is_handed_out_again_to_another_slot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first: list[Slot] = []

    def answer(slot: Slot, task: Task) -> Done | NodeLost:
        if "c24" in task.name and not first:
            first.append(slot)
            return NodeLost("its process was ended by signal 9")
        return Done()

    machines = MadeUp(2, answer)
    made = measured(tmp_path, machines)
    again = [slot for slot, points in machines.asked if "c24" in points[0]]
    assert len(again) == 2 and again[0] != again[1] and len(machines.asked) == 4
    assert not made.failures and "1 tasks lost" in made.said() and "3 of 3 points" in made.said()
    assert "lost" in capsys.readouterr().out
    ends = [parse_json(line) for line in made.folder.log("fleet-0.jsonl").read_text().splitlines()]
    assert sorted(str(end["ended"]) for end in ends if isinstance(end, dict)) == ["lost", *["measured"] * 3]


def test_a_task_that_is_lost_everywhere_fails_and_says_where(tmp_path: Path) -> None:
    machines = MadeUp(3, only("c16", NodeLost("killed for lack of memory")))
    made = measured(tmp_path, machines)
    assert sum("c16" in points[0] for _, points in machines.asked) == TRIES
    (why,) = made.failures.values()
    assert why.startswith(f"lost {TRIES} times") and why.count("killed for lack of memory") == 3


def test_a_slot_that_loses_one_task_after_the_other_gets_no_more(tmp_path: Path) -> None:
    machines = MadeUp(2, only("slot 0", NodeLost("the host does not answer")))
    made = measured(tmp_path, machines)
    assert not made.failures and [slot for slot, _ in machines.asked].count("slot 0") <= LOSSES


def test_a_task_that_kills_its_node_does_not_keep_a_lone_slot_from_the_others(tmp_path: Path) -> None:
    machines = MadeUp(1, only("c16", NodeLost("killed for lack of memory")))
    made = measured(tmp_path, machines)
    assert "2 of 3 points" in made.said() and len(made.failures) == 1
    assert [("c16" in points[0]) for _, points in machines.asked] == [True, False, False, True, True]


def test_an_answer_that_nobody_can_read_is_a_lost_task(tmp_path: Path) -> None:
    first: list[int] = []

    def answer(slot: Slot, task: Task) -> Done:
        first[:] = first or [task.first_generation]  # one thread at a time is in here
        return Done()

    class Garbled(MadeUp):
        def carry_out(self, slot: Slot, files: Files) -> Files:
            left = super().carry_out(slot, files)
            task = from_plain(Task, parse_json(files[TASK]), Path(TASK))
            return {DONE: b'{"samples": '} if [task.first_generation] == first else left

    made = measured(tmp_path, Garbled(2, answer))
    assert not made.failures and "1 tasks lost" in made.said()


def test_what_came_back_is_kept_when_another_task_stops_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merged: list[str] = []

    def merge(task: Task, *rest: object) -> int:
        merged.append(task.name)
        return 0

    monkeypatch.setattr(coordinating, "merge", merge)
    machines = MadeUp(1, lambda slot, task: Done(stopped=Stop("EnvironmentRefused", "disk full")))
    made = coordinator(tmp_path, machines)
    back = Ended(machines.slots[0], Waiting(("a/fake/c8/b1",)), Task(("a/fake/c8/b1",), 0), {}, 0.0, 0.0)
    made._whole.append((back, {}, Done()))
    with pytest.raises(EnvironmentRefused, match="disk full"):
        made.measure(plan().points)
    assert merged == ["a/fake/c8/b1"]


def test_a_signal_waits_until_a_journal_is_whole() -> None:
    came = []
    with interruptible():
        with pytest.raises(KeyboardInterrupt), uninterrupted():
            signal.raise_signal(signal.SIGINT)
            came.append("the body went on")
        assert came and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_where_every_slot_is_lost_the_run_ends_and_says_how_to_go_on(tmp_path: Path) -> None:
    machines = MadeUp(1, lambda slot, task: NodeLost("the host does not answer"))
    with pytest.raises(BackendError, match="every machine of the fleet was lost, 3 points are left") as caught:
        coordinator(tmp_path, machines).measure(plan().points)
    assert "--resume" in str(caught.value) and machines.stopped


def test_a_machine_that_is_unlike_is_left_out_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machines = MadeUp(2, only("slot 0", Done(unlike=("GPU driver: 575 here, 580 where the run began",))))
    made = measured(tmp_path, machines)
    assert not made.failures and [slot for slot, _ in machines.asked].count("slot 0") == 1
    assert "slot 0 is left out, it is not like the others: GPU driver: 575 here" in capsys.readouterr().out


def test_a_machine_that_refuses_is_left_out_and_the_others_measure_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = measured(tmp_path, MadeUp(2, only("slot 0", Done(stopped=Stop("EnvironmentRefused", "disk full")))))
    assert not made.failures and "slot 0 is left out, it refused: disk full" in capsys.readouterr().out


def test_where_no_machine_is_alike_nothing_is_measured(tmp_path: Path) -> None:
    machines = MadeUp(2, lambda slot, task: Done(unlike=("host cpu: Xeon here, EPYC where the run began",)))
    with pytest.raises(EnvironmentRefused, match="host cpu: Xeon here") as caught:
        coordinator(tmp_path, machines).measure(plan().points)
    assert "begin the run on one of the machines" in str(caught.value)


def test_what_stops_a_node_stops_the_run_with_the_same_error(tmp_path: Path) -> None:
    machines = MadeUp(
        1, lambda slot, task: Done(stopped=Stop("UsageError", "option fmha = 3", "write it as KEY=VALUE"))
    )
    with pytest.raises(UsageError, match="option fmha = 3"):
        coordinator(tmp_path, machines).measure(plan().points)


def test_failures_of_an_engine_are_kept_and_not_tried_again(tmp_path: Path) -> None:
    failing = {"c32": "it ran out of memory"}

    def answer(slot: Slot, task: Task) -> Done | NodeLost:
        return Done(failures={p: why for p in task.points for part, why in failing.items() if part in p})

    machines = MadeUp(2, answer)
    made = measured(tmp_path, machines)
    assert list(made.failures.values()) == ["it ran out of memory"] and len(machines.asked) == 3


def test_engine_processes_have_numbers_that_no_other_task_has(tmp_path: Path) -> None:
    generations: list[int] = []

    def answer(slot: Slot, task: Task) -> Done | NodeLost:
        generations.append(task.first_generation)
        return NodeLost("gone") if len(generations) == 1 else Done()

    measured(tmp_path, MadeUp(3, answer))
    assert len(generations) == len(set(generations)) == 4


def test_who_measures_does_not_depend_on_the_order_of_the_slots() -> None:
    slots = [Slot("a", "GPU-1"), Slot("b", "GPU-0")]
    assert in_words(slots) == in_words(slots[::-1]) == "2: GPU-0, GPU-1"
