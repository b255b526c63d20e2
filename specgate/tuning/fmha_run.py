"""A sweep as it is asked for: engines opened one after the other, every point swept, the file kept up to date."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from specgate import plugins
from specgate.api import TunableEngine
from specgate.core import PairRef, Point, Scenario
from specgate.core.fmha import SCHEMA, AttentionConfig, FmhaSweep, PointSweep
from specgate.errors import EnvironmentRefused, UsageError
from specgate.files.plain import to_plain
from specgate.files.writing import write_json
from specgate.tuning.fmha_points import pair_of, points, prompts_of, request_of, scenarios, shortened
from specgate.tuning.fmha_sweep import sweep


@dataclass(frozen=True, slots=True)
class SweepRequest:
    """`configs`: what to try; none: what the engine thinks worth trying. The default is always tried."""

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
    """Each point once it is swept, as far as the time allows. `request.out` is written after every configuration.

    Raises UsageError, EnvironmentRefused and BackendError where an engine cannot be opened.
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
            del engine  # its memory, before the next one is loaded
            if swept is not None:
                done = replace(done, device=device, points=(*done.points, swept))
                yield swept


def sweep_point(
    request: SweepRequest, engine: TunableEngine, scenario: Scenario, point: Point, pair: PairRef, deadline: float
) -> Iterator[PointSweep]:
    """The point as far as it has been swept, after every configuration."""
    default, steps = engine.attention_config(), scenario.budget.longest(0)
    configs = unique([default, *(request.configs or engine.attention_configs())])
    engine.prefill(prompts_of(scenario, point, pair), draft=True)
    for trials in sweep(engine, configs, scenario.roles, steps, deadline, request.passes):
        yield PointSweep(scenario.name, pair.name, point.context, point.batch, steps, default, trials)


def unique(configs: Sequence[AttentionConfig]) -> list[AttentionConfig]:
    return [config for i, config in enumerate(configs) if dict(config) not in [dict(c) for c in configs[:i]]]


def as_record(found: FmhaSweep) -> dict[str, Any]:
    """JSON-ready, with what is derived: each point's best configuration, every score, and the default's loss."""
    plain = to_plain(FmhaSweep, found)
    for record, point in zip(plain["points"], found.points, strict=True):
        record["best"] = dict(point.best.config) if point.best else None
        record["default_loss"] = point.default_loss
        for trial, of in zip(record["trials"], point.trials, strict=True):
            trial["score"] = of.score
    return {"schema": SCHEMA, **plain}
