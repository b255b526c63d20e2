"""The slots of this host, and the processes in them."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from specgate.analysis.machine.gpu_clocks import visible_among
from specgate.errors import UsageError
from specgate.fleet import local
from specgate.fleet.local import LocalMachines
from specgate.fleet.machines import NodeLost
from specgate.fleet.tasks import DONE
from specgate.machine import inventory
from tests.support.in_process import interruptible

CARDS = [{"name": "NVIDIA H200", "uuid": f"GPU-{letter}"} for letter in "abc"]
LEAVES_ALL = "open(f'{folder}/samples/blocks.jsonl', 'w').write('{}\\n'); open(f'{folder}/done.json', 'w').write('{}')"


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventory, "gpus", lambda: CARDS)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventory, "gpus", list)


def nodes(monkeypatch: pytest.MonkeyPatch, script: str) -> list[Mapping[str, str]]:
    """Have a node be `script`. Returns the list of the variables that nodes are started with."""
    seen: list[Mapping[str, str]] = []

    def started(folder: Path, variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
        seen.append(variables)
        with (folder / local.LOG).open("wb") as log:
            command = [sys.executable, "-c", f"folder = {str(folder)!r}\n{script}"]
            return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    monkeypatch.setattr(local, "started", started)
    return seen


@pytest.mark.usefixtures("gpus")
def test_each_gpu_is_a_slot_and_its_node_sees_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, machines = nodes(monkeypatch, LEAVES_ALL), LocalMachines()
    assert [slot.identity for slot in machines.slots] == ["GPU-a", "GPU-b", "GPU-c"]
    left = machines.carry_out(machines.slots[1], {"task.json": b"{}"})
    assert seen == [{"CUDA_VISIBLE_DEVICES": "GPU-b"}]
    assert {"samples/blocks.jsonl": b"{}\n", DONE: b"{}"}.items() <= left.items()


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(("allowed", "expected"), [("2,0", ["GPU-c", "GPU-a"]), ("GPU-b", ["GPU-b"])])
def test_gpus_that_programs_may_not_see_are_no_slots(
    monkeypatch: pytest.MonkeyPatch, allowed: str, expected: list[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", allowed)
    assert [slot.identity for slot in LocalMachines().slots] == expected


@pytest.mark.usefixtures("gpus")
def test_where_programs_may_see_no_gpu_a_slot_is_a_share_of_the_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    (slot,) = LocalMachines().slots
    assert not slot.identity.startswith("GPU-")


@pytest.mark.usefixtures("gpus")
def test_parts_of_a_gpu_are_no_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1,MIG-2")
    with pytest.raises(UsageError, match="CUDA_VISIBLE_DEVICES=MIG-1,MIG-2: no GPU that a slot can be"):
        LocalMachines()


@pytest.mark.parametrize(
    ("variable", "seen"),
    [
        (None, "abc"),
        ("1", "b"),
        ("2,0", "ca"),
        ("GPU-c,1", "cb"),
        ("-1,0", ""),
        ("9,1", ""),
        ("0,9,1", "a"),
        ("0,0", "a"),
    ],
)
def test_gpus_are_seen_up_to_the_first_word_that_names_none(variable: str | None, seen: str) -> None:
    assert [gpu["uuid"] for gpu in visible_among(CARDS, variable)] == [f"GPU-{letter}" for letter in seen]


@pytest.mark.usefixtures("gpus")
def test_a_gpu_is_no_two_slots() -> None:
    assert len(LocalMachines(2).slots) == 2
    with pytest.raises(UsageError, match="--slots 4: this host shows 3 GPUs"):
        LocalMachines(4)


@pytest.mark.usefixtures("no_gpus")
def test_slots_that_share_a_host_s_cpus_are_as_many_as_asked_for() -> None:
    assert len(LocalMachines().slots) == 1
    identities = {slot.identity for slot in LocalMachines(5).slots}
    assert len(identities) == 5


@pytest.mark.usefixtures("no_gpus")
@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("raise SystemExit('no memory left')", "its process ended with exit code 1: no memory left"),
        ("import os; os.kill(os.getpid(), 9)", "its process was ended by signal 9"),
    ],
)
def test_a_node_that_says_nothing_of_its_end_is_lost_with_its_last_words(
    monkeypatch: pytest.MonkeyPatch, script: str, message: str
) -> None:
    nodes(monkeypatch, script)
    machines = LocalMachines()
    with pytest.raises(NodeLost, match=message):
        machines.carry_out(machines.slots[0], {})


@pytest.mark.usefixtures("no_gpus")
@pytest.mark.parametrize("deaf", [False, True])
def test_nodes_are_ended_with_the_fleet_and_none_is_started_after_it(
    monkeypatch: pytest.MonkeyPatch, deaf: bool
) -> None:
    ignored = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n" if deaf else ""
    # An interrupt is lost within an import's callbacks, and while a file is closed that nobody holds any more. So
    # neither happens once it may come.
    script = "import os, threading\nending = threading.Event()\nos.mkdir(f'{folder}/logs/up')\nending.wait()"
    nodes(monkeypatch, ignored + script)
    monkeypatch.setattr(local, "ENDING_S", 0.5 if deaf else 20.0)
    machines, lost, begun = LocalMachines(), list[str](), threading.Event()
    really_started = local.started

    def started(folder: Path, variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
        process = really_started(folder, variables)
        while not (folder / "logs" / "up").exists():
            assert process.poll() is None
        begun.set()
        return process

    monkeypatch.setattr(local, "started", started)

    def carry_out() -> None:
        try:
            machines.carry_out(machines.slots[0], {})
        except NodeLost as error:
            lost.append(str(error))

    thread = threading.Thread(target=carry_out)
    with interruptible():
        thread.start()
        begun.wait()
    machines.stop()
    thread.join()
    assert len(lost) == 1 and lost[0].startswith(f"its process was ended by signal {9 if deaf else 2}")
    with pytest.raises(NodeLost, match="the fleet is ending"):
        machines.carry_out(machines.slots[0], {})
