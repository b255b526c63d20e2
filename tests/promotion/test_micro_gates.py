"""Micro scenarios that a full run rests on, and the command that runs them."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from specgate import plugins
from specgate.contract import AcceptanceSource, Budget, LatencyLimits, PairRef, Policy
from specgate.contract.protocols import HasUsualPair
from specgate.files.config import Config
from specgate.machine import inventory
from specgate.planning.policy import find_policy
from specgate.planning.prompts import RANDOM
from specgate.planning.request import Request
from specgate.planning.scenario import find, shipped
from specgate.promotion.claim import digests
from specgate.promotion.micro_gates import micro_gates

ASKED = Request("full", (), True, Path("runs"))


def policy(name: str) -> Policy:
    return find_policy(name, plugins.gates())


def config(policy_: Policy, pair: str, acceptance: AcceptanceSource = "real") -> Config:
    return Config("full", "fake", PairRef(pair, Path("t"), Path("d"), acceptance), policy_, {})


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventory, "has_cuda_gpu", lambda: True)


@pytest.mark.usefixtures("gpu")
def test_a_policys_micro_scenarios_are_the_gates() -> None:
    gates, command = micro_gates(replace(ASKED, policy="seed"), config(policy("seed"), "demo"))
    assert gates == [find("micro-16k-b4"), find("micro-32k-single")]
    assert command == "specgate micro --policy seed"


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(("length", "name"), [("al2.5", "micro-8b-16k-b4"), ("al3.3", "micro-8b-32k-single")])
def test_of_several_pairs_only_the_measured_ones_scenarios_count(length: str, name: str) -> None:
    pair = f"planted-llama-3.1-8b-{length}"
    gates, command = micro_gates(ASKED, config(policy("planted-8b"), pair, "planted"))
    assert [s.name for s in gates] == [name]
    assert command == f"specgate micro --scenario {name}"


@pytest.mark.usefixtures("gpu")
def test_a_pair_that_no_micro_scenario_asks_for_has_to_pass_all_of_them() -> None:
    pair = "planted-llama-3.1-8b-al2.5"
    gates, command = micro_gates(ASKED, config(policy("seed"), pair, "planted"))
    assert [s.name for s in gates] == ["micro-16k-b4", "micro-32k-single"]
    assert {(s.rope, s.workload.source) for s in gates} == {(None, RANDOM)}
    assert command == f"specgate micro --pair {pair}"


def test_the_pair_that_a_back_end_brings_is_not_named_in_the_command() -> None:
    backend = plugins.backend("fake")
    assert isinstance(backend, HasUsualPair)
    own = replace(config(policy("cpu"), "scripted"), pair=backend.usual_pair())
    assert micro_gates(replace(ASKED, backend="fake"), own)[1] == "specgate micro --backend fake"
    assert micro_gates(replace(ASKED, backend="fake", isolate=True), own)[1].endswith(" --isolate")


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("machines", ["--on ray=HEAD:6379", "--on=gpus --slots 2"])
def test_the_micro_runs_of_a_fleet_are_those_of_the_same_machines(machines: str) -> None:
    argv = ("full", *machines.split(), "--task-points", "1", "--policy", "seed")
    _, command = micro_gates(replace(ASKED, argv=argv, policy="seed"), config(policy("seed"), "demo"))
    assert command == f"specgate micro {machines} --policy seed"


def test_without_micro_in_the_policy_the_machines_default_ones_are_meant() -> None:
    bare = replace(policy("cpu"), micro=())
    gates, _ = micro_gates(ASKED, config(bare, "demo"))
    assert gates == [s for s in shipped() if s.kind == "micro" and s.needs == "cpu" and s.default]


def test_the_command_repeats_what_was_asked() -> None:
    request = replace(
        ASKED, target=Path("a b"), draft=Path("d"), backend="fake", options={"slowdown": "2"}, out=Path("elsewhere")
    )
    _, command = micro_gates(request, config(policy("cpu"), "a b"))
    assert shlex.split(command) == [
        *("specgate", "micro", "--target", "a b", "--draft", "d", "--backend", "fake"),
        *("-o", "slowdown=2", "--out", "elsewhere"),
    ]


def test_a_scenarios_digest_is_of_what_it_measures() -> None:
    scenario = find("cpu-1k-single")
    same = replace(scenario, question="Otherwise put?", source_file=Path("elsewhere.yaml"))
    other = replace(scenario, timeout_s=1.0)
    assert digests([replace(scenario, budget=Budget(steps=64))]) != digests([scenario]), "MICRO_STEPS of another run"
    assert digests([scenario]) == digests([same]) != digests([other])
    assert digests([scenario]) == digests([scenario]), "the same is measured"
    assert digests([replace(scenario, goodput=LatencyLimits(ttft_ms=1.0))]) != digests([scenario])


@pytest.mark.parametrize(
    "name", ["cpu", "seed", "planted-8b", "merge", "merge-reduced", "gpt-oss-120b", "engine-gpt-oss-120b"]
)
def test_every_shipped_policy_names_its_micro_gates(name: str) -> None:
    assert policy(name).micro
