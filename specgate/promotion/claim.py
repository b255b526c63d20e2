"""The order micro → full: which micro gates a run rests on, how often they have been green, and whether it may begin.

What must agree between the micro runs and the full run: the subject (policy, pair, back end and options, by name), the
content of the micro scenarios, and the fingerprint (source tree, policy rules, weights, device, GPU, driver, clock
policy). Weights are known once an engine is loaded: until then those of the last micro run are assumed, and `admit`
checks them before the first block.
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

OF_THE_ENGINE: Final = ("target_sha256", "draft_sha256", "device", "tape_sha256", "tuned_sha256")
"""The fingerprint's keys that only a loaded engine knows: fields of `core.EngineFacts`."""


def claim_of(config: Config, gates: Mapping[str, str]) -> Claim:
    """What has to be green before `config` may run in full, but for the keys `OF_THE_ENGINE`."""
    return Claim(subject_of(config), gates, here(config.policy))


def subject_of(config: Config) -> dict[str, str]:
    options = " ".join(f"{key}={value}" for key, value in sorted(config.options.items()))
    return {"policy": config.policy.name, "pair": config.pair.name, "backend": config.backend, "options": options}


def here(policy: Policy) -> dict[str, str | None]:
    """The fingerprint's keys that are known without an engine."""
    gpu = inventory.visible_gpu() or {}
    stated = {"gpu_uuid": gpu.get("uuid"), "driver": gpu.get("driver"), "clock_policy": clock_policy(gpu)}
    return {
        "source_tree_sha256": inventory.source_tree_sha256(),
        "policy_sha256": _sha256([to_plain(type(rule), rule) for rule in policy.rules]),
        **{key: None if value is None else str(value) for key, value in stated.items()},
    }


def clock_policy(gpu: Mapping[str, object]) -> str | None:
    """`observed` where clocks move freely or the driver does not say, `locked` where it says so; None without a GPU."""
    return str(gpu.get("clock_policy") or "observed") if gpu else None


def of_engine(facts: EngineFacts) -> dict[str, str | None]:
    return {key: getattr(facts, key) for key in OF_THE_ENGINE}


def digests(scenarios: Sequence[Scenario]) -> dict[str, str]:
    """Name → SHA-256 of what a scenario measures: where its file lies and how it is worded do not matter."""
    silent = {"source_file": None, "question": "", "default": True}
    return {s.name: _sha256({**to_plain(Scenario, s), **silent}) for s in scenarios}


def _sha256(plain: object) -> str:
    return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


# ── may it begin ─────────────────────────────────────────────────────────────────────────────────────────────────────


# ── what a run leaves ────────────────────────────────────────────────────────────────────────────────────────────────
