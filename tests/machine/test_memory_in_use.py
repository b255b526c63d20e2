"""Memory of real processes, and of a GPU behind a driver's functions."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from specgate.contract.samples.memory import EngineMemory, MemoryUse
from specgate.machine.memory_in_use import MemoryProbe, resident_bytes
from tests.support.fake_nvml import NOT_SUPPORTED, Driver, Gpu

MIB = 1 << 20
CHILD = "import sys; held = bytearray(64 << 20); print('ready', flush=True); sys.stdin.read()"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {CHILD!r}])"


@pytest.fixture
def tree() -> Iterator[int]:
    """A process whose child holds 64 MiB."""
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
        process.stdin.close()


def test_a_tree_holds_what_its_processes_hold(tree: int) -> None:
    result = resident_bytes(tree)
    assert len(result) == 2 and tree in result
    (child,) = (size for pid, size in result.items() if pid != tree)
    assert 64 * MIB <= child < 256 * MIB
    with MemoryProbe(()) as probe:
        use = probe.read(tree)
        own = probe.read(tree, EngineMemory(process=os.getpid(), kv_tokens=5))
    assert use.process == tree and 64 * MIB <= (use.host_bytes or 0) < 512 * MIB
    assert use.gpu_bytes is use.device_bytes is None
    assert own.process == os.getpid() and own.kv_tokens == 5 and (own.host_bytes or 0) > (use.host_bytes or 0)


def test_of_the_gpu_only_the_engines_processes_count(tree: int, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu(processes=[tree, 1], memory_used=9 << 30)
    driver = Driver([gpu])
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    with MemoryProbe([gpu.uuid]) as probe:
        use = probe.read(tree)
        assert (use.gpu_bytes, use.device_bytes) == (1 << 30, 9 << 30)
        gpu.processes = [999_999_999]  # as from another PID namespace
        use = probe.read(tree)
        assert (use.gpu_bytes, use.device_bytes) == (None, 9 << 30)
        driver.lost = True
        assert probe.read(tree).device_bytes is None
    assert driver.open == 0


def test_of_several_gpus_the_fullest_counts_and_without_one_of_them_none(
    tree: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = Gpu(uuid="GPU-a", processes=[tree], memory_used=9 << 30), Gpu(uuid="GPU-b", memory_used=11 << 30)
    driver = Driver([one, two])
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    with MemoryProbe(["GPU-a", "GPU-b"]) as probe:
        use = probe.read(tree)
        assert (use.gpu_bytes, use.device_bytes) == (1 << 30, 11 << 30)
        two.refuses["MemoryInfo"] = NOT_SUPPORTED
        assert probe.read(tree).device_bytes is None
    with MemoryProbe(["GPU-a", "GPU-none"]) as probe:
        assert (probe.read(tree).gpu_bytes, probe.read(tree).device_bytes) == (None, None)
    assert driver.open == 0


def test_nothing_is_read_of_a_process_that_nobody_knows_or_that_has_ended() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with MemoryProbe(["GPU-none"]) as probe:
        assert probe.read(os.getpid(), EngineMemory(kv_bytes=3)) == MemoryUse(kv_bytes=3)
        assert probe.read(ended.pid) == MemoryUse(process=ended.pid)
