"""A sweep over configurations of attention: the points it tries, decoding at each, and the file it keeps."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import product
from math import prod
from pathlib import Path
from typing import Annotated, Any, Final

from specgate import plugins
from specgate.backends.eagle3.nouns.abilities import TunableEngine
from specgate.backends.eagle3.nouns.fmha import (
    GRID_SCHEMA,
    SCHEMA,
    AttentionConfig,
    FmhaSweep,
    PointSweep,
    RoleTrial,
    TileStatistics,
    Trial,
)
from specgate.contract import Budget, PairRef, Point, Role, Scenario
from specgate.contract.acceptance import AcceptanceRecord
from specgate.contract.protocols import Decoded, OpenRequest
from specgate.contract.reading import Problem
from specgate.contract.types import Length
from specgate.errors import BackendError, EnvironmentRefused, UsageError
from specgate.files.json_text import to_plain
from specgate.files.writing import write_json
from specgate.files.yaml_schema import parse, refusal
from specgate.files.yamlfile import load
from specgate.pairs.resolve import resolve_pair, target_limits
from specgate.planning.plan import positions_needed
from specgate.planning.prompts import build_prompts
from specgate.planning.scenario import find

DEMO: Final = ("micro-16k-b4", "micro-32k-single")
PLANTED: Final = ("micro-8b-16k-b4", "micro-8b-32k-single")
"""Scenarios that are swept by default: on the demo pair if it is installed, else on planted pairs. In either case one
has batch 4 and one a single request, since the engine's default tiles differ between the two.
"""


MOST_CONFIGURATIONS: Final = 10_000
"""Of attention in one sweep: a day of work."""


@dataclass(frozen=True, slots=True)
class GridFile:
    """A grid file: knob → values to try."""

    grid: Annotated[Mapping[str, Annotated[tuple[int, ...], Length(1)]], Length(1)]


def read_grid(file: Path) -> tuple[AttentionConfig, ...]:
    """All combinations of the values that a YAML file lists per knob. Raises UsageError with file and line."""
    grid = parse(GridFile, document := load(file), GRID_SCHEMA).grid
    if (count := prod(map(len, grid.values()))) > MOST_CONFIGURATIONS:
        raise refusal(document, [Problem(("grid",), f"{count} combinations; at most {MOST_CONFIGURATIONS}")])
    return tuple(dict(zip(grid, values, strict=True)) for values in product(*grid.values()))


def scenarios(names: Sequence[str]) -> Iterator[tuple[Scenario, PairRef | None]]:
    """(scenario, pair) to sweep.

    Without `names`, these are the two scenarios of the demo pair if it is installed, else two of planted pairs of 8B
    size. The pair is None if it is still to be resolved from the scenario.
    """
    if names:
        yield from ((find(name), None) for name in names)
        return
    try:
        demo = resolve_pair(None, None, None)
    except EnvironmentRefused:
        yield from ((find(name), None) for name in PLANTED)
        return
    yield from ((find(name), demo) for name in DEMO)


def shortened(scenario: Scenario, steps: int | None) -> Scenario:
    """The scenario with a budget of at most `steps` steps.

    Raises UsageError if the scenario's own budget is in tokens and no `steps` are given.
    """
    own = scenario.budget.steps
    if own is None and steps is None:
        raise UsageError(f"scenario {scenario.name}: its budget is of tokens", hint="give --steps, or a micro scenario")
    return replace(scenario, budget=Budget(steps=min(n for n in (own, steps) if n is not None)))


def points(scenario: Scenario) -> Iterator[Point]:
    """The points of a scenario: every context with every batch. They name no back end.

    Raises UsageError where it has no contexts, because its prompts keep their lengths.
    """
    if not scenario.grid.context:
        why = "its prompts are as long as they are, and a sweep needs contexts"
        raise UsageError(f"scenario {scenario.name}: grid.context: {why}", hint="give it contexts, or name another one")
    for context, batch in product(scenario.grid.context, scenario.grid.batch):
        yield Point(scenario.name, "", context, batch)


def pair_of(scenario: Scenario, named: str | None, default: PairRef | None) -> PairRef:
    """Return the pair to sweep: the one that is `named`, else `default`, else the scenario's own.

    A pair that was named gets no RoPE scaling from the scenario, unless it is the scenario's own.
    """
    if named is not None and named != scenario.pair:
        return resolve_pair(named, None, None)
    return replace(default or resolve_pair(scenario.pair, None, None), rope=scenario.rope_keys)


def request_of(scenario: Scenario, point: Point, pair: PairRef, options: Mapping[str, str]) -> OpenRequest:
    """The request for an engine that can decode one point."""
    return OpenRequest(
        pair=pair,
        dtype=scenario.dtype,
        max_batch=point.batch,
        max_positions=positions_needed(scenario, point),
        max_k=max(scenario.grid.spec),
        perf_mode=False,
        options=options,
    )


def prompts_of(scenario: Scenario, point: Point, pair: PairRef) -> tuple[tuple[int, ...], ...]:
    """The token ids of the scenario's first measured prompt set, one tuple per slot.

    They are random for a planted pair, whose tokens have no meaning, and for a pair without a tokenizer.
    """
    file = pair.target / "tokenizer.json"
    if pair.acceptance == "planted" or not file.is_file():
        scenario = replace(scenario, workload=replace(scenario.workload, source="random"))
    scenario = replace(scenario, workload=replace(scenario.workload, prompt_sets=1, warmup_sets=0))
    _, vocab = target_limits(pair, pair.rope)
    built = build_prompts(scenario, point.context, point.batch, file if file.is_file() else None, vocab)
    return built.measured[0].token_ids


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


@dataclass(frozen=True, slots=True)
class SweepRequest:
    """Request of `specgate engine tune fmha`.

    `configs`: the configurations to try; if empty, those that the engine proposes. The engine's default is always tried
    too. `steps`: most steps of a decode run, or None for the scenario's budget. `seconds`: no engine is opened and no
    configuration is begun after that time. `out`: the file for the results.
    """

    scenarios: tuple[str, ...]
    pair: str | None
    configs: tuple[AttentionConfig, ...]
    steps: int | None
    passes: int
    backend: str
    options: Mapping[str, str]
    seconds: float
    out: Path


def carry_out(request: SweepRequest) -> Iterator[PointSweep]:
    """Sweep one point after the other until the time is up, and yield each when it is done.

    `request.out` is written after every configuration. Raises EnvironmentRefused if the back end cannot run here,
    UsageError if its attention has no configurations, and BackendError if an engine cannot be opened.
    """
    backend = plugins.backend(request.backend)
    if not (availability := backend.available()).usable:
        raise EnvironmentRefused(f"back end {request.backend}: {availability.reason}")
    deadline = time.monotonic() + request.seconds
    jobs = [(shortened(scenario, request.steps), default) for scenario, default in scenarios(request.scenarios)]
    done = FmhaSweep(datetime.now(UTC).isoformat(timespec="seconds"), request.backend, "", request.passes, ())
    for scenario, default in jobs:
        pair = pair_of(scenario, request.pair, default)
        for point in points(scenario):
            if time.monotonic() > deadline:
                return
            engine = backend.open(request_of(scenario, point, pair, request.options))
            if not isinstance(engine, TunableEngine):
                raise UsageError(f"back end {request.backend}: its attention has no configurations", hint="known: cupy")
            device, swept = engine.facts().device, None
            for swept in sweep_point(request, engine, scenario, point, pair, deadline):
                write_json(request.out, as_record(replace(done, device=device, points=(*done.points, swept))))
            engine.close()
            del engine  # frees its memory before the next engine is loaded
            if swept is not None:
                done = replace(done, device=device, points=(*done.points, swept))
                yield swept


def sweep_point(
    request: SweepRequest, engine: TunableEngine, scenario: Scenario, point: Point, pair: PairRef, deadline: float
) -> Iterator[PointSweep]:
    """Sweep one point. After every configuration, yields what has been found of the point so far."""
    default, steps = engine.attention_config(), scenario.budget.longest(0)
    configs = unique([default, *(request.configs or engine.attention_configs())])
    engine.prefill(prompts_of(scenario, point, pair), draft=True)
    for trials in sweep(engine, configs, scenario.roles, steps, deadline, request.passes):
        yield PointSweep(scenario.name, pair.name, point.context, point.batch, steps, default, trials)


def unique(configs: Sequence[AttentionConfig]) -> list[AttentionConfig]:
    """The configurations without repetitions, in their order."""
    return [config for i, config in enumerate(configs) if dict(config) not in [dict(c) for c in configs[:i]]]


def as_record(sweep: FmhaSweep) -> dict[str, Any]:
    """The sweep as JSON-ready data, with what follows from it: the best configuration of each point, the score of every
    configuration, and how much slower the default is than the best.
    """
    plain = to_plain(FmhaSweep, sweep)
    for record, point in zip(plain["points"], sweep.points, strict=True):
        record["best"] = dict(point.best.config) if point.best else None
        record["default_loss"] = point.default_loss
        for trial, of in zip(record["trials"], point.trials, strict=True):
            trial["score"] = of.score
    return {"schema": SCHEMA, **plain}
