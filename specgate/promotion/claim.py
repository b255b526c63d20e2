"""What the micro runs and a full run must have in common, so that the micro runs count for the full run.

These must agree:

    subject        policy, pair, back end and options, by name
    gates          the content of the micro scenarios, as SHA-256
    fingerprint    source tree, policy rules, weights, device, GPU, driver, clock policy

Weights and device are known only once an engine is loaded. Until then those of the last micro run are assumed;
`admission.admit` checks them before the first block of the full run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Final

from specgate.core import EngineFacts, Policy, Scenario
from specgate.files.config import Config
from specgate.files.plain import to_plain
from specgate.machine import inventory
from specgate.promotion.streak import Claim

ENGINE_KEYS: Final = ("target_sha256", "draft_sha256", "device", "tape_sha256", "tuned_sha256")
"""The keys of the fingerprint that only a loaded engine knows. Each is a field of `core.EngineFacts`."""


def claim_of(config: Config, gates: Mapping[str, str]) -> Claim:
    """What has to be green before `config` may run in full. Its fingerprint lacks the keys `ENGINE_KEYS`.

    `gates`: micro scenario → SHA-256 of its content.
    """
    return Claim(subject_of(config), gates, machine_fingerprint(config.policy))


def subject_of(config: Config) -> dict[str, str]:
    """What is measured, by name: policy, pair, back end and options."""
    options = " ".join(f"{key}={value}" for key, value in sorted(config.options.items()))
    return {"policy": config.policy.name, "pair": config.pair.name, "backend": config.backend, "options": options}


def machine_fingerprint(policy: Policy) -> dict[str, str | None]:
    """The keys of the fingerprint that are known without an engine: source tree, policy rules, GPU, driver, clocks."""
    gpu = inventory.visible_gpu() or {}
    stated = {"gpu_uuid": gpu.get("uuid"), "driver": gpu.get("driver"), "clock_policy": clock_policy(gpu)}
    return {
        "source_tree_sha256": inventory.source_tree_sha256(),
        "policy_sha256": _sha256([to_plain(type(rule), rule) for rule in policy.rules]),
        **{key: None if value is None else str(value) for key, value in stated.items()},
    }


def clock_policy(gpu: Mapping[str, object]) -> str | None:
    """`locked` if the driver says that the clocks are locked, else `observed`. None without a GPU."""
    return str(gpu.get("clock_policy") or "observed") if gpu else None


def engine_fingerprint(facts: EngineFacts) -> dict[str, str | None]:
    """The keys of the fingerprint that only a loaded engine knows."""
    return {key: getattr(facts, key) for key in ENGINE_KEYS}


def digests(scenarios: Sequence[Scenario]) -> dict[str, str]:
    """Scenario name → SHA-256 of what the scenario measures.

    Its question, where its file lies and whether it runs by default are left out: they do not change what is measured.
    """
    silent = {"source_file": None, "question": "", "default": True}
    return {s.name: _sha256({**to_plain(Scenario, s), **silent}) for s in scenarios}


def _sha256(plain: object) -> str:
    return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
