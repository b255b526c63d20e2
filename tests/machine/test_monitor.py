"""The watch samples beside a run, ends with it, and is never the run's undoing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path

import psutil
import pytest

from specgate.contract.conditions import Sample, clock_readings
from specgate.files.run_folder import RunFolder
from specgate.machine.monitor import Sampler, line_of, snapshot, watching
from tests.support.fake_nvml import Driver, Gpu

ROOT = Path(__file__).parents[2]


def new_folder(parent: Path) -> RunFolder:
    return RunFolder.create(parent, "micro", "one", "ab" * 32)


def the_watch() -> psutil.Process:
    (watch,) = [p for p in psutil.Process().children() if "spawn_main" in " ".join(p.cmdline())]
    return watch


def test_even_an_empty_body_lies_between_two_samples(tmp_path: Path) -> None:
    folder = new_folder(tmp_path)
    with watching(folder.watch_file, 3, (), interval_s=60.0):
        pass
    first, last = folder.lines(Sample)
    assert first.worker_generation == last.worker_generation == 3
    assert first.monotonic_ns < last.monotonic_ns
    assert first.gpu is None and first.nvml
    assert first.host.available_memory_bytes > 0


def test_samples_are_written_while_the_body_runs_without_a_clock_where_there_is_no_gpu(tmp_path: Path) -> None:
    folder = new_folder(tmp_path)
    with watching(folder.watch_file, 0, (), interval_s=0.2):
        while folder.watch_file.read_text().count("\n") < 4:
            time.sleep(0.05)
    samples = folder.lines(Sample)
    times = [s.monotonic_ns for s in samples]
    assert len(times) >= 5
    assert times == sorted(times)
    assert not any(s.clocks for s in samples)


def test_ctrl_c_never_reaches_a_watch_not_even_while_it_starts(tmp_path: Path) -> None:
    """Else it would print a traceback beside the run's own words. A mask that it has, it has from its first moment."""
    with watching(new_folder(tmp_path).watch_file, 0, (), interval_s=60.0):
        watch = the_watch()
        status = Path(f"/proc/{watch.pid}/status").read_text()
    blocked = int(status.partition("SigBlk:")[2].split()[0], 16)
    assert all(blocked >> (name - 1) & 1 for name in (signal.SIGINT, signal.SIGHUP))
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_a_watch_that_is_killed_leaves_its_samples_and_the_run_alone(tmp_path: Path) -> None:
    folder = new_folder(tmp_path)
    with watching(folder.watch_file, 0, (), interval_s=60.0):
        the_watch().send_signal(signal.SIGKILL)
    assert len(folder.lines(Sample)) == 1


def test_a_watch_that_cannot_write_leaves_the_run_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with watching(tmp_path / "nowhere" / "environment.jsonl", 0, ()):
        done = True
    assert done and capfd.readouterr().err == ""


def test_a_watch_ends_with_a_harness_that_was_killed(tmp_path: Path) -> None:
    file = tmp_path / "environment.jsonl"
    program = (
        "import os, sys; from pathlib import Path; from specgate.machine.monitor import watching\n"
        "if __name__ == '__main__':\n"
        "    with watching(Path(sys.argv[1]), 0, (), 60.0): os.kill(os.getpid(), 9)\n"
    )
    (tmp_path / "harness.py").write_text(program)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    # The watch holds the pipe of its standard output: `run` returns when it has ended too.
    command = [sys.executable, str(tmp_path / "harness.py"), str(file)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert file.read_text().count("\n") == 2


def test_a_line_reads_back_as_the_sample_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu().busy(os.getpid(), os.getppid(), 2**22 + 1)
    monkeypatch.setitem(sys.modules, "pynvml", Driver([gpu]))
    sampler = Sampler(1, os.getpid(), [gpu.uuid])
    sample = sampler.sample()
    sampler.close()
    assert sample.gpu is not None and sample.gpu.processes is not None
    assert sorted(p.owner for p in sample.gpu.processes) == ["foreign", "ours", "unseen"]
    folder = new_folder(tmp_path)
    folder.watch_file.write_text(line_of(sample) + '{"torn')
    assert folder.lines(Sample) == [sample]


def test_the_clock_is_read_between_samples_and_goes_with_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = Gpu(sm_clock_mhz=1500)
    monkeypatch.setitem(sys.modules, "pynvml", Driver([gpu]))
    sampler = Sampler(0, os.getpid(), [gpu.uuid])
    first = sampler.sample()
    sampler.read_clock()
    gpu.sm_clock_mhz, gpu.reasons = 1700, 0x4
    sampler.read_clock()
    second, third = sampler.sample(), sampler.sample()
    sampler.close()
    assert first.clocks == third.clocks == ()
    assert [(c.sm_mhz, c.event_reasons) for c in second.clocks] == [(1500, 0x1), (1700, 0x4)]
    assert [c.monotonic_ns for c in clock_readings(second)] == sorted(c.monotonic_ns for c in clock_readings(second))
    folder = new_folder(tmp_path)
    folder.watch_file.write_text(line_of(second))
    assert folder.lines(Sample) == [second]


def test_a_clock_that_the_driver_refuses_is_unknown_and_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver([Gpu()])
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    sampler = Sampler(0, os.getpid(), [driver.gpus[0].uuid])
    driver.lost = True
    sampler.read_clock()
    (reading,) = sampler.sample().clocks
    assert reading.sm_mhz is None and reading.event_reasons is None


def test_a_gpu_that_is_lost_while_sampling_leaves_samples_that_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver([Gpu()])
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    sampler = Sampler(0, os.getpid(), [driver.gpus[0].uuid])
    healthy = sampler.sample()
    driver.lost = True
    lost = sampler.sample()
    assert healthy.gpu is not None and not healthy.gpu.silent
    assert lost.gpu is not None and lost.gpu.silent


def test_a_snapshot_is_json_with_the_time_of_day() -> None:
    record = json.loads(json.dumps(snapshot(()), allow_nan=False))
    assert record["wall_ns"] > 1_700_000_000_000_000_000
    assert set(record) == {field.name for field in fields(Sample)} - {"worker_generation", "monotonic_ns", "clocks"}
