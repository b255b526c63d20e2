"""What a sweep over the configurations of an engine's attention finds: the nouns, and nothing that runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from specgate.errors import UsageError

SCHEMA: Final = "specgate.fmha-sweep/v1"
GRID_SCHEMA: Final = "specgate.fmha-grid/v1"

AttentionConfig = Mapping[str, int]
"""Knob → value, as the engine names them."""


@dataclass(frozen=True, slots=True)
class TileStatistics:
    """Tiles of the cache that the attention of one step was launched for: `span_empty` lay beyond a slot's length, all
    positions of `mask_empty` were hidden by length or window, `executed` were worked on.
    """

    total: int
    span_empty: int
    mask_empty: int
    executed: int


@dataclass(frozen=True, slots=True)
class RoleTrial:
    """One role under one configuration: tokens per second of all slots, milliseconds per step (median); the acceptance
    length of a role that drafts.
    """

    tok_s: float
    step_ms: float
    acceptance_length: float | None
    tiles: TileStatistics


@dataclass(frozen=True, slots=True)
class Trial:
    """One configuration. `failed`: why there are no figures; else `roles` has one per role, by name."""

    config: AttentionConfig
    roles: Mapping[str, RoleTrial]
    failed: str | None = None

    @property
    def score(self) -> float:
        """Geometric mean of the roles' steps per second: one configuration serves them all. 0 where it failed.

        Not of tokens per second: sums in another order may choose another token, and the acceptance length of a stretch
        that goes another way says nothing of the configuration.
        """
        if self.failed is not None or not self.roles:
            return 0.0
        return math.exp(math.fsum(math.log(1e3 / r.step_ms) for r in self.roles.values()) / len(self.roles))


@dataclass(frozen=True, slots=True)
class PointSweep:
    """All configurations at one point of a scenario. `default`: what the engine takes there by itself."""

    scenario: str
    pair: str
    context: int
    batch: int
    steps: int
    default: AttentionConfig
    trials: tuple[Trial, ...]

    @property
    def best(self) -> Trial | None:
        working = [t for t in self.trials if t.score > 0]
        return max(working, key=lambda t: t.score) if working else None

    @property
    def default_loss(self) -> float | None:
        """By which share the default's score lies below the best; None where either was not measured."""
        own = [t.score for t in self.trials if dict(t.config) == dict(self.default) and t.score > 0]
        return 1 - own[0] / self.best.score if own and self.best else None


@dataclass(frozen=True, slots=True)
class FmhaSweep:
    measured: str
    backend: str
    device: str
    passes: int
    points: tuple[PointSweep, ...]


def parse_config(text: str) -> AttentionConfig:
    """`kv_tile:512,warps:4` → knobs. Raises UsageError."""
    config = dict[str, int]()
    for part in text.split(","):
        name, _, value = part.partition(":")
        if not name.strip() or not value.strip().isdigit() or name.strip() in config:
            raise UsageError(f"attention configuration {text!r}: {part!r}", hint="write KNOB:NUMBER,KNOB:NUMBER")
        config[name.strip()] = int(value)
    return config
