"""Decode with one attention configuration after the other, on the same prompts and in one loaded engine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from specgate.backends.eagle3.nouns.abilities import TunableEngine
from specgate.backends.eagle3.nouns.fmha import AttentionConfig, RoleTrial, TileStatistics, Trial
from specgate.contract import Budget, Role
from specgate.contract.acceptance import AcceptanceRecord
from specgate.contract.protocols import Decoded
from specgate.errors import BackendError

PASSES = 2
"""Passes over all configurations. Every second one is in reverse order, so that drift of the machine affects the first
and the last configurations alike.
"""


@dataclass(slots=True)
class Samples:
    """Measurements of one configuration so far. `failed`: the reason why it does not work, or None."""

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
    """Decode with every configuration, and yield the trials so far after each one. The engine must be prefilled.

    A configuration has failed if it cannot be compiled or launched, or if a role emits other tokens with it than the
    first role does. `steps`: the length of a decode run. No configuration is begun after `deadline` (`time.monotonic`).
    """
    samples_of = [Samples(failed=why) for why in engine.prepare_attention(configs, roles)]
    for number in range(passes):
        order = range(len(configs)) if number % 2 == 0 else reversed(range(len(configs)))
        for i in order:
            if time.monotonic() > deadline:
                return
            if samples_of[i].failed is None:
                decode(engine, configs[i], roles, steps, samples_of[i])
            yield tuple(
                trial_of(config, samples)
                for config, samples in zip(configs, samples_of, strict=True)
                if was_tried(samples)
            )


def decode(engine: TunableEngine, config: AttentionConfig, roles: Sequence[Role], steps: int, samples: Samples) -> None:
    """One decode run per role with `config`; adds what it finds to `samples`."""
    try:
        engine.retile_attention(config)
        for role in roles:
            engine.decode(role, Budget(steps=2), ())  # compiles kernels, captures graphs, warms up
            samples.decoded.setdefault(role, []).append(engine.decode(role, Budget(steps=steps), ()))
            if role not in samples.tiles:
                samples.tiles[role] = engine.attention_tiles(role)
    except BackendError as error:
        samples.failed = error.message
        return
    samples.failed = disagreement({role: each[-1] for role, each in samples.decoded.items()})


def disagreement(decoded: Mapping[Role, Decoded]) -> str | None:
    """The first place where a role's tokens differ from the first role's, in words; None if they agree.

    Sequences are compared up to the length of the shorter one.
    """
    (first, expected), *others = decoded.items()
    for role, other in others:
        for slot, (want, got) in enumerate(zip(expected.tokens, other.tokens, strict=True)):
            both = min(len(want), len(got))
            if want[:both] != got[:both]:
                at = next(i for i in range(both) if want[i] != got[i])
                return f"slot {slot}, token {at}: {role} has {got[at]}, {first} {want[at]}"
    return None


def was_tried(samples: Samples) -> bool:
    return bool(samples.decoded) or samples.failed is not None


def trial_of(config: AttentionConfig, samples: Samples) -> Trial:
    if samples.failed is not None:
        return Trial(dict(config), {}, samples.failed)
    return Trial(
        dict(config),
        {role.name: role_trial(role, each, samples.tiles[role]) for role, each in samples.decoded.items()},
    )


def role_trial(role: Role, decoded: Sequence[Decoded], tiles: TileStatistics) -> RoleTrial:
    """The figures of a role over all its decode runs. The prefill token of a slot is not counted."""
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
