"""Decode under one attention configuration after the other, on the same prompts, in one loaded engine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from specgate.acceptance import AcceptanceRecord
from specgate.api import Decoded, TunableEngine
from specgate.core import Budget, Role
from specgate.errors import BackendError
from specgate.tuning.fmha import AttentionConfig, RoleTrial, TileStatistics, Trial

PASSES = 2
"""Over all configurations, there and back: what drifts meets early and late ones alike."""


@dataclass(slots=True)
class Samples:
    """What the passes have found of one configuration so far."""

    decoded: dict[Role, list[Decoded]] = field(default_factory=dict)
    tiles: dict[Role, TileStatistics] = field(default_factory=dict)
    failed: str | None = None


def sweep(
    engine: TunableEngine,
    configs: Sequence[AttentionConfig],
    roles: Sequence[Role],
    steps: int,
    deadline: float,
    passes: int = PASSES,
) -> Iterator[tuple[Trial, ...]]:
    """Every configuration's trial so far, after each that was decoded; the engine has been given its prompts.

    One that cannot be compiled or launched, or under which a role emits other tokens than the first, has failed.
    No configuration is begun after `deadline` (`time.monotonic`).
    """
    found = [Samples(failed=why) for why in engine.prepare_attention(configs, roles)]
    for number in range(passes):
        order = range(len(configs)) if number % 2 == 0 else reversed(range(len(configs)))
        for i in order:
            if time.monotonic() > deadline:
                return
            if found[i].failed is None:
                decode(engine, configs[i], roles, steps, found[i])
            yield tuple(
                trial_of(config, samples) for config, samples in zip(configs, found, strict=True) if seen(samples)
            )


def decode(engine: TunableEngine, config: AttentionConfig, roles: Sequence[Role], steps: int, samples: Samples) -> None:
    try:
        engine.retile_attention(config)
        for role in roles:
            engine.decode(role, Budget(steps=2), ())  # captures, compiles, warms up
            samples.decoded.setdefault(role, []).append(engine.decode(role, Budget(steps=steps), ()))
            if role not in samples.tiles:
                samples.tiles[role] = engine.attention_tiles(role)
    except BackendError as error:
        samples.failed = error.message
        return
    samples.failed = disagreement({role: each[-1] for role, each in samples.decoded.items()})


def disagreement(decoded: Mapping[Role, Decoded]) -> str | None:
    """Where a role's tokens are not those of the first role, as far as both go."""
    (first, expected), *others = decoded.items()
    for role, found in others:
        for slot, (want, got) in enumerate(zip(expected.tokens, found.tokens, strict=True)):
            both = min(len(want), len(got))
            if want[:both] != got[:both]:
                at = next(i for i in range(both) if want[i] != got[i])
                return f"slot {slot}, token {at}: {role} has {got[at]}, {first} {want[at]}"
    return None


def seen(samples: Samples) -> bool:
    return bool(samples.decoded) or samples.failed is not None


def trial_of(config: AttentionConfig, samples: Samples) -> Trial:
    if samples.failed is not None:
        return Trial(dict(config), {}, samples.failed)
    return Trial(
        dict(config),
        {role.name: role_trial(role, each, samples.tiles[role]) for role, each in samples.decoded.items()},
    )


def role_trial(role: Role, decoded: Sequence[Decoded], tiles: TileStatistics) -> RoleTrial:
    """Of all stretches of a role; tokens are those after the prefill's."""
    tokens = sum(len(slot) - 1 for each in decoded for slot in each.tokens)
    records = [
        AcceptanceRecord.from_steps(
            role.k, each.accepted, each.drafted, sum(len(slot) - 1 for slot in each.tokens), sum(each.truncated)
        )
        for each in decoded
        if role.speculative
    ]
    return RoleTrial(
        tok_s=tokens / sum(each.elapsed_ns for each in decoded) * 1e9,
        step_ms=statistics.median(ns for each in decoded for ns in each.step_ns) / 1e6,
        acceptance_length=records[0].acceptance_length if records else None,
        tiles=tiles,
    )
