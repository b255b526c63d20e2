"""The configuration of a run, as `config.resolved.yaml` stores it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from specgate.contract import PairRef, Policy, RunKind, Scenario
from specgate.files.json_text import to_plain
from specgate.files.writing import without_home


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
        canonical = json.dumps(to_plain(Config, self), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(without_home(canonical).encode()).hexdigest()
