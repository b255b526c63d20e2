"""The configuration of a run, as `config.resolved.yaml` stores it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from specgate.contract import PairRef, Policy, RunKind, Scenario
from specgate.files.plain import to_plain
from specgate.files.writing import without_home

LATER: Final[Mapping[str, object]] = {
    "goodput": None,
    "definitions": 1,
    "statistics": 1,
    "baseline": True,
    "load": None,
    "sampling": None,
    "draws": None,
    "options": {},
    "variants": {},
}
"""Fields of a scenario that older versions did not have → what stands for the way in which these did it."""

LATER_OF_WORKLOAD: Final[Mapping[str, object]] = {
    "file": None,
    "shared_prefix": 0,
    "format": "auto",
    "chat": None,
    "min_tokens": 1,
    "max_tokens": None,
    "sha256": None,
}
"""The same of its workload."""


def as_older(scenario: Mapping[str, object]) -> dict[str, object]:
    """A plain scenario without the fields that say no more than an older version would have, so that a digest over it
    stays what it was.
    """
    kept = {key: value for key, value in scenario.items() if key not in LATER or value != LATER[key]}
    schedule = kept.get("schedule")
    if isinstance(schedule, dict) and not schedule.get("extended"):
        kept["schedule"] = {key: value for key, value in schedule.items() if key != "extended"}
    workload = kept.get("workload")
    if isinstance(workload, dict):
        later = LATER_OF_WORKLOAD
        kept["workload"] = {k: value for k, value in workload.items() if k not in later or value != later[k]}
    rope = kept.get("rope")
    if isinstance(rope, dict):
        kept["rope"] = {key: value for key, value in rope.items() if value is not None}
    return kept


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that decides what a run does. `config.resolved.yaml` stores it, and `--resume` reads it back."""

    kind: RunKind
    backend: str
    pair: PairRef
    policy: Policy
    scenarios: Mapping[str, Scenario]
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """SHA-256 of the configuration as canonical JSON: keys sorted, defaults filled in, the home folder written as
        `~`.
        """
        plain = {**to_plain(Config, self), "policy": plain_policy(self.policy)}
        if plain["pair"]["weights"] == "here":  # as in all runs before there was a choice
            del plain["pair"]["weights"]
        plain["scenarios"] = {name: as_older(scenario) for name, scenario in plain["scenarios"].items()}
        canonical = json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(without_home(canonical).encode()).hexdigest()


LATER_KEYS: Final = ("checks", "not_judged", "unreachable")
"""Keys that policies got later. One that was stored before has None in their place."""


def plain_policy(policy: Policy) -> dict[str, Any]:
    """The policy as JSON-ready data, with no key that the version which wrote it did not know.

    Hashes and stored judgements of older runs hold it in this form.
    """
    plain: dict[str, Any] = to_plain(Policy, policy)
    for key in LATER_KEYS:
        if plain[key] is None:
            del plain[key]
    if "checks" in plain and plain["checks"]["followed"] is None:
        del plain["checks"]["followed"], plain["checks"]["followed_tokens"]
    if "checks" in plain and plain["checks"]["second_look"] == "none":
        del plain["checks"]["second_look"]
    for rule in plain["rules"]:
        del rule["otherwise"]
        if not rule["unless"]:
            del rule["unless"]
    return plain
