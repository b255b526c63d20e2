"""Results of a sweep over the configurations of an engine's attention. Data classes only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from specgate.errors import UsageError

SCHEMA: Final = "specgate.fmha-sweep/v1"
GRID_SCHEMA: Final = "specgate.fmha-grid/v1"

AttentionConfig = Mapping[str, int]
"""Setting → value, with the engine's own names for the settings."""


@dataclass(frozen=True, slots=True)
class TileStatistics:
    """Numbers of KV-cache tiles that the attention kernels of one step were launched for.

    `span_empty`: tiles beyond a slot's length.
    `mask_empty`: tiles whose positions were all hidden by the length or the window.
    `executed`: tiles that were worked on.
    """

    total: int
    span_empty: int
    mask_empty: int
    executed: int


@dataclass(frozen=True, slots=True)
class RoleTrial:
    """One role under one configuration.

    `tok_s`: tokens per second of all slots together.
    `step_ms`: median milliseconds per step.
    `acceptance_length`: of a role that drafts, in tokens; None for the baseline.
    """

    tok_s: float
    step_ms: float
    acceptance_length: float | None
    tiles: TileStatistics


@dataclass(frozen=True, slots=True)
class Trial:
    """One configuration. `failed` says why there are no figures; else `roles` has one entry per role name."""

    config: AttentionConfig
    roles: Mapping[str, RoleTrial]
    failed: str | None = None

    @property
    def score(self) -> float:
        """Geometric mean of the roles' steps per second, since one configuration serves all roles. 0 where the trial
        failed.

        Tokens per second would mislead: another order of summation may choose another token, and the acceptance length
        of a decode run that takes another course says nothing about the configuration.
        """
        if self.failed is not None or not self.roles:
            return 0.0
        return math.exp(math.fsum(math.log(1e3 / r.step_ms) for r in self.roles.values()) / len(self.roles))


@dataclass(frozen=True, slots=True)
class PointSweep:
    """All configurations at one point of a scenario. `default` is what the engine uses there by itself."""

    scenario: str
    pair: str
    context: int
    batch: int
    steps: int
    default: AttentionConfig
    trials: tuple[Trial, ...]

    @property
    def best(self) -> Trial | None:
        """The trial with the highest score; None where every trial failed."""
        working = [t for t in self.trials if t.score > 0]
        return max(working, key=lambda t: t.score) if working else None

    @property
    def default_loss(self) -> float | None:
        """Return the distance of the default's score below the best one, as a share of the best; None if either was not
        measured.
        """
        own = [t.score for t in self.trials if dict(t.config) == dict(self.default) and t.score > 0]
        return 1 - own[0] / self.best.score if own and self.best else None


@dataclass(frozen=True, slots=True)
class FmhaSweep:
    """The sweeps of one run, as stored.

    `measured`: when, in ISO 8601.
    `passes`: how often each configuration was decoded.
    """

    measured: str
    backend: str
    device: str
    passes: int
    points: tuple[PointSweep, ...]


def parse_config(text: str) -> AttentionConfig:
    """`kv_tile:512,warps:4` → settings. Raises UsageError for text of another form and for a repeated setting."""
    config = dict[str, int]()
    for part in text.split(","):
        name, _, value = part.partition(":")
        if not name.strip() or not value.strip().isdigit() or name.strip() in config:
            raise UsageError(f"attention configuration {text!r}: {part!r}", hint="write KNOB:NUMBER,KNOB:NUMBER")
        config[name.strip()] = int(value)
    return config
