"""Options of a scenario or a variant reach the engine: the watch, the floors and the memory figures follow them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from specgate import plugins
from specgate.backends.fake.engine import FakeBackend
from specgate.checkpoints.parameters import least_weight_bytes
from specgate.contract import Scenario
from specgate.contract.conditions import Sample
from specgate.files.config import Config
from specgate.files.run_folder import RunFolder
from specgate.machine import inventory
from specgate.run.session import measured_ports
from specgate.run.watched_gpus import engine_options, run_gpus, scenario_gpus
from tests.support.command import POLICY as POLICY_FILE
from tests.support.command import Cli, scenario_text
from tests.support.factories import POLICY, plan_of, run_of, scenario
from tests.support.fake_nvml import Driver, Gpu

ALL = tuple(f"GPU-{i}" for i in range(4))


def config_of(*scenarios: Scenario, options: Mapping[str, str] | None = None, backend: str = "cupy") -> Config:
    pair = run_of(plan_of(), ()).pair
    return Config("micro", backend, pair, POLICY, {s.name: s for s in scenarios}, options or {})


@pytest.fixture
def four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventory, "gpus", lambda: [{"uuid": uuid} for uuid in ALL])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.engine
@pytest.mark.usefixtures("four_gpus")
def test_gpus_follow_from_what_reaches_the_engine_and_a_run_watches_those_of_its_largest() -> None:
    plain = scenario()
    split = replace(plain, name="demo-64+tp2", options={"tp": "2"})
    config = config_of(plain, split, options={"prefill": "eager"})
    assert engine_options(config, split) == {"prefill": "eager", "tp": "2"}
    assert [scenario_gpus(config, s) for s in (plain, split)] == [ALL[:1], ALL[:2]]
    assert run_gpus(config) == ALL[:2]
    assert run_gpus(config_of(plain)) == ALL[:1]
    assert run_gpus(config_of(plain, options={"tp": "4"})) == ALL


class OnSeveralGpus(FakeBackend):
    """Uses two GPUs where `max_positions` is set, which the scripted engine takes and which changes nothing."""

    def gpus(self, options: Mapping[str, str]) -> int:
        return 2 if "max_positions" in options else 1


class Attaching(FakeBackend):
    """Attaches to a server."""

    def attaches(self, options: Mapping[str, str]) -> bool:
        return "url" in options

    def local_ports(self, options: Mapping[str, str]) -> tuple[int, ...]:
        return (int(options["url"].rpartition(":")[2]),) if "url" in options else ()


VARIANT = scenario_text() + "variants: {two: {options: {max_positions: 4096}}}\n"


def behind_the_name_fake(monkeypatch: pytest.MonkeyPatch, backend: FakeBackend) -> None:
    known = plugins.backend
    monkeypatch.setattr(plugins, "backend", lambda name: backend if name == "fake" else known(name))


def test_ports_that_a_scenario_names_are_of_the_run_too(monkeypatch: pytest.MonkeyPatch) -> None:
    behind_the_name_fake(monkeypatch, Attaching())
    one, two = (replace(scenario(f"s{p}"), options={"url": f"http://127.0.0.1:{p}"}) for p in (8000, 8001))
    assert measured_ports(config_of(one, two, scenario(), backend="fake")) == (8000, 8001)


def test_a_variant_on_two_gpus_is_watched_apart_from_the_role_on_one(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second GPU idles at 345 MHz beside the plain role. That must not look like the clock of the first."""
    behind_the_name_fake(monkeypatch, OnSeveralGpus())
    first, second = Gpu(uuid="GPU-a").busy(os.getpid()), Gpu(uuid="GPU-b", memory_used=9 << 30, sm_clock_mhz=345)
    first.memory_used = 5 << 30
    driver = Driver([first, second])
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    cli.write("tiny.yaml", VARIANT)
    cli.write("policy.yaml", POLICY_FILE.replace("MIN", "1.0").replace("role: baseline", 'role: "baseline*"'))
    cli.micro("--backend", "fake", "--plain", code=0)

    folder = RunFolder.open(cli.newest())
    clocks = {(s.worker_generation, s.gpu.sm_clock_mhz) for s in folder.lines(Sample) if s.gpu is not None}
    assert clocks == {(0, 1980), (1, 345)}
    run = folder.read_run()
    idle = {key.split("/")[0]: c.gpu.clock_event_reasons for key, c in run.conditions.items()}
    assert idle == {"tiny": 0, "tiny+two": 0x1}
    # the weight floor of a GPU that has half of the weights
    whole = least_weight_bytes(Path(run.pair.target))
    assert whole is not None
    floors = {key.split("/")[0]: facts.least_weight_bytes for key, facts in run.engines.items()}
    assert floors == {"tiny": whole, "tiny+two": whole // 2}
    cli.run("runs", "verify", folder.path, pair=False, code=0)
