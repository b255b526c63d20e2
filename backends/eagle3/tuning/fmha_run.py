"""Run a whole sweep over configurations of attention: open an engine per point, sweep it, keep the file up to date."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from specgate import plugins
from specgate.backends.eagle3.nouns.abilities import TunableEngine
from specgate.backends.eagle3.nouns.fmha import SCHEMA, AttentionConfig, FmhaSweep, PointSweep
from specgate.backends.eagle3.tuning.fmha_points import pair_of, points, prompts_of, request_of, scenarios, shortened
from specgate.backends.eagle3.tuning.fmha_sweep import sweep
from specgate.contract import PairRef, Point, Scenario
from specgate.errors import EnvironmentRefused, UsageError
from specgate.files.plain_data import to_plain
from specgate.files.writing import write_json


@dataclass(frozen=True, slots=True)
class SweepRequest:
    """What `specgate engine tune fmha` was asked to do.

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
    wanted = [(shortened(scenario, request.steps), found) for scenario, found in scenarios(request.scenarios)]
    done = FmhaSweep(datetime.now(UTC).isoformat(timespec="seconds"), request.backend, "", request.passes, ())
    for scenario, found in wanted:
        pair = pair_of(scenario, request.pair, found)
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


def as_record(found: FmhaSweep) -> dict[str, Any]:
    """The sweep as JSON-ready data, with what follows from it: the best configuration of each point, the score of every
    configuration, and how much slower the default is than the best.
    """
    plain = to_plain(FmhaSweep, found)
    for record, point in zip(plain["points"], found.points, strict=True):
        record["best"] = dict(point.best.config) if point.best else None
        record["default_loss"] = point.default_loss
        for trial, of in zip(record["trials"], point.trials, strict=True):
            trial["score"] = of.score
    return {"schema": SCHEMA, **plain}
