"""Machines that may take part in a run."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from specgate.fleet.machines import unlike
from specgate.machine import inventory

FACTS = {"source_tree_sha256": "abc", "interpreter": "CPython 3.12", "package:torch": "2.11.0"}
CARD = {
    "name": "NVIDIA H200",
    "memory_bytes": 141,
    "driver": "580",
    "power_limit_mw": 700_000,
    "max_sm_clock_mhz": 1980,
}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Describe this machine; a copy of it is the machine that the run began on."""
    now: dict[str, Any] = {
        "host": {"machine": "x86_64", "cpu": "EPYC", "cpus_usable": 16, "memory_bytes": 5},
        "gpus": [{**CARD, "uuid": "GPU-b"}],
        "variables": {},
    }
    monkeypatch.setattr(inventory, "environment", lambda: now)
    monkeypatch.setattr(inventory, "visible_gpu", lambda: now["gpus"][0] if now["gpus"] else None)
    return now


def test_another_gpu_of_the_same_kind_is_alike(machine: dict[str, Any]) -> None:
    began = copy.deepcopy(machine)
    began["gpus"] = [{**CARD, "uuid": "GPU-a"}, {**CARD, "uuid": "GPU-b"}]
    began["host"]["memory_bytes"] = 6
    assert not list(unlike(began, {**FACTS, "target_sha256": None}, FACTS))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("gpu driver", "575", "GPU driver: 575 here, 580 where the run began"),
        ("gpu name", "NVIDIA H100", "GPU name: NVIDIA H100 here"),
        ("gpu power_limit_mw", 600_000, "GPU power_limit_mw: 600000 here"),
        ("host cpu", "Xeon", "host cpu: Xeon here, EPYC where the run began"),
        ("host cpus_usable", 8, "host cpus_usable: 8 here"),
    ],
)
def test_an_unlike_machine_is_named_with_both_values(
    machine: dict[str, Any], key: str, value: object, message: str
) -> None:
    began, (part, _, name) = copy.deepcopy(machine), key.partition(" ")
    (machine["gpus"][0] if part == "gpu" else machine["host"])[name] = value
    (result,) = unlike(began, FACTS, FACTS)
    assert result.startswith(message)


def test_other_software_is_named(machine: dict[str, Any]) -> None:
    here = {**FACTS, "source_tree_sha256": "def", "package:cupy": "14"}
    assert list(unlike(copy.deepcopy(machine), FACTS, here)) == [
        "source_tree_sha256: def here, abc where the run began",
        "package:cupy: 14 here, None where the run began",
    ]


def test_a_machine_without_a_gpu_is_unlike_one_that_has_one(machine: dict[str, Any]) -> None:
    began = copy.deepcopy(machine)
    machine["gpus"] = []
    assert "GPU name: None here, NVIDIA H200 where the run began" in list(unlike(began, FACTS, FACTS))


def test_the_gpu_that_a_run_began_on_is_the_one_that_its_programs_were_allowed_to_see(machine: dict[str, Any]) -> None:
    began = copy.deepcopy(machine)
    began["gpus"] = [{**CARD, "name": "NVIDIA T4", "uuid": "GPU-a"}, {**CARD, "uuid": "GPU-b"}]
    began["variables"] = {"CUDA_VISIBLE_DEVICES": "GPU-b"}
    assert not list(unlike(began, FACTS, FACTS))
