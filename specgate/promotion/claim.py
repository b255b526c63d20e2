"""Claims: what micro runs and a full run must have in common, so that the micro runs count for the full run.

These must agree:

    subject        policy, pair, back end and options, by name
    gates          the content of the micro scenarios, as SHA-256
    fingerprint    source tree, interpreter, packages, CUDA, plug-ins from outside, policy rules, GPU, driver and clock
                   policy (without a GPU: the host), weights, device, the engine's own version; of somebody else's
                   engine also its build and how it is set up

What the engine is (`ENGINE_KEYS`) is known only once it is loaded. Until then the values of the last micro run are
assumed; `admission.admit` checks them before the first block of the full run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from specgate.contract import EngineFacts, Policy, Run, Scenario
from specgate.contract.samples.engine_facts import OF_ENGINE
from specgate.files.config import Config
from specgate.files.json_text import to_plain
from specgate.machine import host, inventory
from specgate.machine.software import Software, software
from specgate.promotion.green_runs import Claim

ENGINE_KEYS: Final = (*("target_sha256", "draft_sha256", "device", "engine_version", "tape_sha256", "tuned_sha256"),)
"""The keys of the fingerprint that only a loaded engine knows. Each is a field of `contract.EngineFacts`. What
identifies somebody else's engine is stated by further keys, which begin with `OF_ENGINE`.
"""


def claim_of(config: Config, gates: Mapping[str, str], rests_on: Software) -> Claim:
    """Return the claim that has to be green before `config` may run in full. Its fingerprint lacks the keys
    `ENGINE_KEYS`.

    `gates`: micro scenario → SHA-256 of its content. `rests_on`: the software, as `software_of` found it.
    """
    known = {**rests_on.facts, **machine_fingerprint(config.policy)}
    return Claim(subject_of(config), gates, known)


def subject_of(config: Config) -> dict[str, str]:
    """Return what is measured, by name: policy, pair, back end and options."""
    options = " ".join(f"{key}={value}" for key, value in sorted(config.options.items()))
    return {"policy": config.policy.name, "pair": config.pair.name, "backend": config.backend, "options": options}


def software_of(config: Config) -> Software:
    """The software that a run of `config` rests on, the engine that scores tokens again included.

    Raises EnvironmentRefused where a plug-in cannot be read.
    """
    checks = config.policy.checks
    second = [checks.rescored_by] if checks.rescored_by else []
    return software([config.backend, *second], [rule.gate for rule in config.policy.rules])


def machine_fingerprint(policy: Policy) -> dict[str, str | None]:
    """Keys of the fingerprint that are known without an engine, apart from the software: policy rules, GPU, driver,
    clocks and host.
    """
    gpu = inventory.visible_gpu() or {}
    stated = {"gpu_uuid": gpu.get("uuid"), "driver": gpu.get("driver"), "clock_policy": clock_policy(gpu)}
    return {
        "policy_sha256": policy_digest(policy),
        **{key: None if value is None else str(value) for key, value in stated.items()},
        "host": host_identity(),
    }


def policy_digest(policy: Policy) -> str:
    """SHA-256 of what a policy judges by: its rules, its checks, and what it leaves unjudged."""
    plain = to_plain(Policy, policy)
    return _sha256({key: plain[key] for key in ("rules", "checks", "not_judged")})


def host_identity() -> str | None:
    """The host, if it is what is measured on. None with a GPU, whose UUID says more."""
    return None if inventory.visible_gpu() else host.identity()


def begun_with(run: Run) -> dict[str, str | None]:
    """The software in the fingerprint of a run, which was read when it began."""
    others = ("config_sha256", "host", *ENGINE_KEYS)
    begun = {key: value for key, value in run.fingerprint.items() if key not in others}
    return {key: value for key, value in begun.items() if not key.startswith(OF_ENGINE)}


def clock_policy(gpu: Mapping[str, object]) -> str | None:
    """`locked` if the driver says that the clocks are locked, else `observed`. None without a GPU."""
    return str(gpu.get("clock_policy") or "observed") if gpu else None


def engine_fingerprint(facts: EngineFacts) -> dict[str, str | None]:
    """The keys of the fingerprint that only a loaded engine knows."""
    known = {key: getattr(facts, key) for key in ENGINE_KEYS}
    return {**known, **(facts.identity.fingerprint if facts.identity else {})}


def digests(scenarios: Sequence[Scenario]) -> dict[str, str]:
    """Scenario name → SHA-256 of what the scenario measures.

    Its question, where its file and its prompts lie, whether it runs by default, and which
    variants are measured beside it are left out: they do not change what is measured. Prompts from a file are told by
    their SHA-256.
    """
    silent: dict[str, object] = {"source_file": None, "question": "", "default": True, "variants": {}}
    return {s.name: _sha256({**to_plain(Scenario, anywhere(s)), **silent}) for s in scenarios}


def anywhere(scenario: Scenario) -> Scenario:
    """The scenario without the place of its file of prompts."""
    if scenario.workload.file is None:
        return scenario
    return replace(scenario, workload=replace(scenario.workload, file=Path()))


def _sha256(plain: object) -> str:
    return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
