"""Defaults of a command line without policy, pair and scenarios, by the answer of the machine's probe."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specgate import plugins
from specgate.contract import Machine
from specgate.machine import inventory
from specgate.planning.ad_hoc import Question
from specgate.planning.defaults import FIRST_POLICY, MACHINE_POLICY, default_policy, policy_of, runs_of
from specgate.planning.policy import find_policy, micro_names
from specgate.planning.request import Request
from specgate.planning.scenario import find, shipped

BARE = Request(kind="micro", argv=("micro",), plain=True, out=Path("runs"), backend="cupy")


@pytest.mark.engine
@pytest.mark.parametrize("kind", ["micro", "full"])
def test_a_gpu_without_a_question_gets_the_planted_pairs_one_run_for_each(kind: Any) -> None:
    runs = runs_of(replace(BARE, kind=kind, argv=(kind,)), "gpu")
    assert [run.argv for run in runs] == [
        (kind, "--scenario", f"{kind}-8b-16k-b4", "--policy", "planted-8b"),
        (kind, "--scenario", f"{kind}-8b-32k-single", "--policy", "planted-8b"),
    ]
    for run in runs:
        (name,) = run.scenarios
        assert find(name).pair.startswith("planted-") and run.policy == FIRST_POLICY
    assert kind == "full" or micro_names(find_policy(FIRST_POLICY, plugins.gates())) == tuple(
        name for run in runs for name in run.scenarios
    ), "the gates before a full run are what micro measures by itself"


def test_what_is_asked_for_is_measured_as_it_is() -> None:
    entries: tuple[dict[str, Any], ...] = (
        {"scenarios": ("micro-32k-single",)},
        {"only": "micro-*"},
        {"pair": "demo"},
        {"target": Path("t"), "draft": Path("d")},
        {"draft": Path("d")},
        {"policy": "merge"},
        {"question": Question(batch=(4,))},
        {"resume": Path("runs/r")},
        {"kind": "load"},
        {"backend": "fake"},
        {"backend": "vllm"},
    )
    for fields in entries:
        request = replace(BARE, **fields)
        assert runs_of(request, "gpu") == [request], fields
    settings: dict[str, Any] = {"backend": "cupy", "measurement_runs": 4, "perf_mode": False}
    assert all(run.measurement_runs == 4 for run in runs_of(replace(BARE, **settings), "gpu"))


@pytest.mark.engine
@pytest.mark.parametrize(("kind", "scenario"), [("micro", "cpu-first"), ("full", "cpu-full-512")])
def test_an_engine_that_is_not_made_for_a_gpu_measures_what_it_would_on_a_cpu(kind: Any, scenario: str) -> None:
    (run,) = runs_of(replace(BARE, kind=kind, argv=(kind,), backend="reference"), "gpu")
    assert (run.scenarios, run.policy) == ((scenario,), "cpu")
    assert run.argv == (kind, "--scenario", scenario, "--policy", "cpu")


def test_without_a_gpu_the_default_scenarios_run() -> None:
    assert runs_of(BARE, "cpu") == [BARE]
    assert {s.pair for s in shipped() if s.needs == "cpu" and s.default} == {"demo"}


@pytest.mark.parametrize(
    ("size", "backend", "options", "policy"),
    [
        ("cpu", "reference", {}, "cpu"),
        ("gpu", "cupy", {}, "seed"),
        ("gpu", "fake", {}, "seed"),
        ("cpu", "vllm", {"url": "http://127.0.0.1:8000"}, "engine"),
        ("cpu", "llamacpp", {}, "engine"),
        ("gpu", "vllm", {}, "engine-gpu"),
        ("gpu", "vllm-offline", {}, "engine-gpu"),
        ("gpu", "vllm", {"url": "http://127.0.0.1:8000"}, "engine-gpu"),
        ("gpu", "vllm", {"url": "http://gpu-7.example:8000"}, "engine"),
        ("cpu", "transformers", {}, "engine"),
    ],
)
@pytest.mark.engine
def test_a_policy_is_chosen_by_what_is_measured(
    size: Machine, backend: str, options: dict[str, str], policy: str
) -> None:
    plugin = plugins.backend(backend)
    assert default_policy("micro", size, plugin, options) == policy
    assert default_policy("load", size, plugin, options) == "load"
    assert default_policy("load", size, plugin, {**options, "force_al": "2.5"}) == "load-forced"
    assert default_policy("micro", size, plugin, {**options, "force_al": "2.5"}) == "speed-only"
    assert find_policy(policy, plugins.gates()).name == policy


def test_an_engine_of_another_environment_is_not_taken_for_exact() -> None:
    assert default_policy("micro", "cpu", None, {}) == "engine"


@pytest.mark.engine
def test_another_pair_than_the_demo_pair_does_not_have_to_meet_its_floors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventory, "has_cuda_gpu", lambda: False)
    reference, demo = plugins.backend("reference"), find("cpu-first")
    named: tuple[dict[str, Any], ...] = (
        {"pair": "my-pair"},
        {"target": Path("t"), "draft": Path("d")},
        {"draft": Path("d")},
    )
    for fields in named:
        assert policy_of(replace(BARE, **fields), reference, [demo]).name == "cpu-pair"
    assert policy_of(BARE, reference, [replace(demo, pair="my-pair")]).name == "cpu-pair"
    assert policy_of(replace(BARE, pair="demo"), reference, [demo]).name == "cpu"
    assert policy_of(replace(BARE, pair="my-pair", policy="cpu"), reference).name == "cpu"
    demos, own_pairs = ({rule.id: rule for rule in find_policy(n, plugins.gates()).rules} for n in ("cpu", "cpu-pair"))
    floors = {name for name, rule in demos.items() if rule.gate in ("acceptance", "speed")} - {"other-acceptance"}
    assert demos.keys() - own_pairs.keys() == floors
    assert all(own_pairs[name] == replace(demos[name], unless=own_pairs[name].unless) for name in own_pairs)


@pytest.mark.engine
def test_the_doctor_checks_the_limits_of_the_machines_own_policy() -> None:
    assert {size: default_policy("micro", size, plugins.backend("reference"), {}) for size in MACHINE_POLICY} == dict(
        MACHINE_POLICY
    )
