"""The preflight: every check in a line, rejecting what the policy would reject, within 80 columns."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result

from specgate.cli import cli
from specgate.contract import Policy, Rule
from specgate.contract.conditions import HostReading
from specgate.machine.doctor import Limits, host_checks
from specgate.planning.gates import machine_limits
from tests.support.fake_nvml import LIBRARY_NOT_FOUND, NO_PERMISSION, Driver, Gpu, liar

QUIET = HostReading(load_average=0.1, other_cpu_share=0.02, available_memory_bytes=64 << 30, swap_used_bytes=0)


@pytest.fixture(autouse=True)
def quiet_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("specgate.machine.doctor.LOOK_S", 0.0)
    monkeypatch.setattr("specgate.machine.host.HostProbe.read", lambda self: QUIET)


def examined(monkeypatch: pytest.MonkeyPatch, driver: Driver, *arguments: str) -> Result:
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    return CliRunner().invoke(cli, ["machine", "doctor", *arguments])


def levels(result: Result) -> dict[str, str]:
    return {c["name"]: c["level"] for c in json.loads(result.stdout)["checks"]}


def test_a_healthy_gpu_is_fit_and_every_check_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    result = examined(monkeypatch, Driver([Gpu()]), "--policy", "seed", "--json")
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert (record["schema"], record["policy"], record["fit"]) == ("specgate.doctor/v1", "seed", True)
    results = levels(result)
    gpu = {name: level for name, level in results.items() if name not in ("CPU frequency", "CPU quota")}
    assert set(gpu.values()) == {"ok"}, results
    assert len(results) >= 17
    assert "NVIDIA H200, driver 580.159.04" in record["checks"][0]["found"]


REJECTED: dict[str, tuple[str, Callable[[], Gpu]]] = {
    "another process": ("GPU processes", lambda: Gpu(processes=[os.getppid()])),
    "a process of another namespace": ("GPU processes", lambda: Gpu(graphics=[2**22 + 1])),
    "a slow-down": ("clock events", lambda: Gpu(reasons=0x40)),
    "heat": ("temperature", lambda: Gpu(temperature_c=89)),
    "memory errors": ("memory errors", lambda: Gpu(ecc_uncorrected=1)),
    "rows to remap": ("remapped rows", lambda: Gpu(remapped=(0, 1, 1, 0))),
    "a lowered power limit": ("power limit", lambda: Gpu(power_limit_mw=400_000)),
    "hidden processes": ("NVML's answers", lambda: Gpu(refuses={"ComputeRunningProcesses": NO_PERMISSION})),
    "zeros": ("NVML's figures", liar),
}


@pytest.mark.parametrize(("check", "gpu"), REJECTED.values(), ids=list(REJECTED))
def test_what_a_run_would_be_rejected_for_is_rejected_before_it(
    monkeypatch: pytest.MonkeyPatch, check: str, gpu: Callable[[], Gpu]
) -> None:
    result = examined(monkeypatch, Driver([gpu()]), "--policy", "seed", "--json")
    assert result.exit_code == 4
    assert [name for name, level in levels(result).items() if level == "reject"] == [check]
    assert not json.loads(result.stdout)["fit"]
    only_warned = examined(monkeypatch, Driver([gpu()]), "--policy", "cpu", "--json")
    assert only_warned.exit_code == 0
    assert levels(only_warned)[check] == "warn"


@pytest.mark.parametrize(
    ("check", "gpu"),
    [
        ("ECC", Gpu(ecc=0)),
        ("MIG", Gpu(mig=1)),
        ("persistence mode", Gpu(persistence=0)),
        ("PCIe width", Gpu(pcie_width=8)),
        ("temperature", Gpu(temperature_c=80)),
        ("thermal violations", Gpu(violations_ns={0: 0, 1: 3 * 10**9})),
    ],
)
def test_what_is_unusual_but_measurable_warns(monkeypatch: pytest.MonkeyPatch, check: str, gpu: Gpu) -> None:
    result = examined(monkeypatch, Driver([gpu]), "--policy", "seed", "--json")
    assert result.exit_code == 0
    assert levels(result)[check] == "warn"


def test_without_nvml_the_policy_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    none = Driver([], init_error=LIBRARY_NOT_FOUND)
    assert examined(monkeypatch, none, "--policy", "seed").exit_code == 4
    assert examined(monkeypatch, none, "--policy", "cpu").exit_code == 0
    record = json.loads(examined(monkeypatch, none, "--json").stdout)
    assert record["policy"] == "cpu"
    assert record["checks"][0]["found"] == "no NVIDIA driver: NVML Shared Library Not Found"


def test_the_gpu_that_is_looked_at_is_the_one_that_would_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-second")
    driver = Driver([Gpu(uuid="GPU-first", ecc_uncorrected=5), Gpu(uuid="GPU-second")])
    assert examined(monkeypatch, driver, "--policy", "seed").exit_code == 0


@pytest.mark.parametrize(
    "gpu", [Gpu(), liar(), Gpu(processes=[1, os.getppid(), 2**22 + 1], mig=1, power_limit_mw=1000)]
)
def test_the_table_fits_80_columns_and_ends_with_the_verdict(monkeypatch: pytest.MonkeyPatch, gpu: Gpu) -> None:
    result = examined(monkeypatch, Driver([gpu]), "--policy", "seed")
    lines = result.output.rstrip().split("\n")
    assert max(map(len, lines)) <= 80
    assert "policy seed: " in result.output
    if result.exit_code:
        assert "rejected for" in result.output


def test_nothing_is_asked_of_the_driver_that_would_change_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver([Gpu()])
    before = dict(vars(driver.gpus[0]))
    examined(monkeypatch, driver)
    assert vars(driver.gpus[0]) == before
    assert driver.open == 0


LOADED = HostReading(load_average=640.0, other_cpu_share=0.9, available_memory_bytes=1 << 20, swap_used_bytes=1 << 20)


@pytest.mark.parametrize(("required", "level"), [(True, "reject"), (False, "warn")])
def test_a_loaded_host_is_rejected_where_the_policy_requires_quiet(required: bool, level: str) -> None:
    params = {"gpu": False, "max_other_cpu_share": 0.25, "max_clock_shift": 0.05, "max_clock_jump_s": 1.0}
    policy = Policy("p", (Rule("quiet", "environment", required, params=params),))
    data = {c.name: c.level for c in host_checks(LOADED, Limits.of(machine_limits(policy)))}
    assert data["CPU use of others"] == level
    assert data["load average"] == data["free memory"] == data["swap in use"] == "warn"


def test_a_policy_without_an_environment_rule_rejects_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits.of(machine_limits(Policy("p", (Rule("records", "validity", True),))))
    assert not any(c.level == "reject" for c in host_checks(LOADED, limits))


def test_a_host_that_does_not_tell_what_others_use_warns() -> None:
    unknown = HostReading(load_average=None, other_cpu_share=None, available_memory_bytes=64 << 30, swap_used_bytes=0)
    data = {c.name: c for c in host_checks(unknown, Limits(gpu=True, max_other_cpu_share=0.5, required=True))}
    assert data["CPU use of others"].level == "warn"
    assert "load average" not in data
