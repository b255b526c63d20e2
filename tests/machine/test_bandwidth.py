"""The read bandwidth: measured on the device that is measured, stored per machine, picked up by later runs."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from specgate.backends.fake.engine import BACKEND as SILENT
from specgate.backends.fake.engine import FakeBackend
from specgate.cli import cli
from specgate.contract import Bandwidth
from specgate.contract.conditions import HostReading
from specgate.contract.protocols import Availability, Backend, MemoryReads
from specgate.errors import EnvironmentRefused, InvalidResult
from specgate.machine import bandwidth, inventory
from tests.support.command import Cli
from tests.support.fake_nvml import Driver, Gpu

TIMES = (250_000_000, 240_000_000, 260_000_000, 250_000_000, 250_000_000)


class Reader(FakeBackend):
    """A back end that reads 1 GB in a quarter of a second, as a clock would say."""

    def __init__(self, name: str, device: str, gpu_uuid: str | None, times: tuple[int, ...] = TIMES) -> None:
        self.name, self.reads = name, MemoryReads(device, gpu_uuid, 10**9, times)

    def read_memory(self, repeats: int) -> MemoryReads:
        assert repeats == bandwidth.REPEATS
        return self.reads


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", Driver([]))


def offering(monkeypatch: pytest.MonkeyPatch, *backends: Backend) -> None:
    """These back ends, the last of the highest rank."""
    data = {b.name: (b, Availability(True, "", rank)) for rank, b in enumerate(backends)}
    monkeypatch.setattr("specgate.plugins.backends_available", lambda: data)


def test_the_median_of_the_reads_counts_and_their_quartiles_are_the_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    offering(monkeypatch, Reader("host", "cpu", None), SILENT)
    measure = bandwidth.measure()
    assert measure.bytes_per_s == pytest.approx(4e9)
    assert measure.spread == pytest.approx((255 - 245) / 250)
    assert (measure.device, measure.gpu_uuid, measure.repeats) == ("cpu", None, 5)


def test_the_best_back_end_that_can_read_does(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu()
    monkeypatch.setitem(sys.modules, "pynvml", Driver([gpu]))
    uuid = inventory.visible_gpu_uuid()
    offering(monkeypatch, Reader("host", "cpu", None), Reader("gpu", "NVIDIA H200", uuid))
    assert bandwidth.measure().gpu_uuid == uuid


def test_another_devices_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Driver([Gpu()]))
    offering(monkeypatch, Reader("host", "cpu", None))
    with pytest.raises(
        EnvironmentRefused, match=r"the memory of cpu \(no GPU\) was read, but GPU-\S+ is measured here"
    ):
        bandwidth.measure()


def test_without_a_back_end_that_reads_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    offering(monkeypatch, SILENT)
    with pytest.raises(EnvironmentRefused, match="no back end that is usable here can read memory"):
        bandwidth.measure()


MEASURED = Bandwidth("2026-11-21T12:00:00+00:00", "cpu", None, 10**9, 30, 4e9, 0.001)


def test_what_was_stored_is_read_again_and_a_later_one_replaces_it(tmp_path: Path) -> None:
    out = tmp_path / "runs"
    assert bandwidth.bandwidth_of(out) is None
    file = bandwidth.store(MEASURED, out)
    assert file == tmp_path / "noise" / "cpu-bandwidth.json"
    assert bandwidth.bandwidth_of(out) == MEASURED
    later = replace(MEASURED, bytes_per_s=5e9)
    bandwidth.store(later, out)
    assert bandwidth.bandwidth_of(out) == later


def test_every_gpu_has_a_file_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Driver([Gpu()]))
    uuid = inventory.visible_gpu_uuid()
    assert uuid and bandwidth.file_of(tmp_path / "runs").name == f"{uuid.removeprefix('GPU-')[:8]}-bandwidth.json"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cpu-bandwidth.json: not JSON"),
        (
            '{"schema": "specgate.noise/v1"}',
            r"schema: 'specgate.noise/v1'; this specgate reads 'specgate.bandwidth/v1'",
        ),
        ('{"schema": "specgate.bandwidth/v1", "device": "cpu"}', r"cpu-bandwidth.json: measured: this key is required"),
    ],
)
def test_a_file_that_holds_something_else_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "noise").mkdir()
    (tmp_path / "noise" / "cpu-bandwidth.json").write_text(text)
    with pytest.raises(InvalidResult, match=message):
        bandwidth.bandwidth_of(tmp_path / "runs")


# ── the command ──────────────────────────────────────────────────────────────────────────────────────────────────────


def doctor(monkeypatch: pytest.MonkeyPatch, folder: Path, *arguments: str) -> Result:
    quiet = HostReading(load_average=0.1, other_cpu_share=0.02, available_memory_bytes=64 << 30, swap_used_bytes=0)
    monkeypatch.setattr("specgate.machine.doctor.LOOK_S", 0.0)
    monkeypatch.setattr("specgate.machine.host.HostProbe.read", lambda self: quiet)
    offering(monkeypatch, Reader("host", "cpu", None, TIMES))
    return CliRunner().invoke(
        cli, ["machine", "doctor", "--bandwidth", "--policy", "cpu", "--out", str(folder / "runs"), *arguments]
    )


def test_reads_that_differ_much_are_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result = doctor(monkeypatch, tmp_path, "--json")
    assert result.exit_code == 0
    record = json.loads(result.stdout)
    assert record["bandwidth"]["bytes_per_s"] == 4e9
    (check,) = (c for c in record["checks"] if c["name"] == "read bandwidth")
    assert check["level"] == "warn" and "quartiles 4.0% apart" in check["found"]


def test_a_folder_that_cannot_be_written_is_exit_4(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "noise").write_text("a file")
    result = doctor(monkeypatch, tmp_path)
    assert isinstance(result.exception, EnvironmentRefused)
    assert "noise: cannot be written" in str(result.exception)


# ── a run ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_run_stores_what_it_found_and_floors_follow_from_it(cli: Cli) -> None:
    bandwidth.store(MEASURED, cli.folder / "runs")
    done = cli.micro("--backend", "reference", "-o", "device=cpu", "--plain")
    assert done.returncode in (0, 1), done.stdout + done.stderr
    record = json.loads((cli.newest() / "run.json").read_text())
    assert record["bandwidth"]["bytes_per_s"] == 4e9
    for budget in record["budgets"].values():
        assert budget["no_floor"] is None
        assert all(p["floor_ms"] == pytest.approx(sum(p["moved"].values()) / 4e6) for p in budget["parts"])
    assert cli.run("runs", "verify", cli.newest(), pair=False).returncode == 0
