"""Find floors of a policy that no run can reach, before anything is measured, and what would reach them.

Certain without any measurement is that a cycle of K drafts emits at most K + 1 tokens. How much of a request its
prefill takes, and what a cycle takes at least, is known where an earlier run beside the one to come measured the same
pair, back end and options on the same machine (`analysis.speedup_limits` has the arithmetic).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from specgate.analysis.speedup_limits import (
    PointTimes,
    least_cycle_s,
    most_of_requests,
    most_of_steps,
    prefill_for,
    tokens_for,
)
from specgate.contract import (
    ACCEPTANCE_LENGTH,
    BASELINE,
    LOSSY,
    SPEEDUP,
    Budget,
    Cell,
    Floor,
    Plan,
    Point,
    Policy,
    Rule,
    Run,
)
from specgate.contract.cycle_budget import Bandwidth
from specgate.contract.types import DRAFT_TOKENS
from specgate.errors import SpecgateError, UsageError
from specgate.files.config import Config
from specgate.files.run_folder import RunFolder
from specgate.planning.gates import floors_of

LOOKED_AT: Final = 20
"""Runs that are looked at for the times of a point, the newest first."""


def check_reachable(
    config: Config, plan: Plan, out: Path, environment: Mapping[str, object], memory: Bandwidth | None
) -> tuple[str, ...]:
    """One sentence for each required floor of the policy that a run of `plan` cannot reach.

    `out`: the folder of runs. `environment`: this machine, as env.json states it. `memory`: its read bandwidth. Raises
    UsageError that lists them where the policy says `unreachable: refuse`.
    """
    required = list(required_floors(config.policy, plan))
    times = times_of({cell.point for _, cell, _ in speed_floors(required)}, config, out, environment)
    unreachable = tuple(dict.fromkeys(out_of_reach(required, plan, times, memory)))
    if unreachable and config.policy.unreachable == "refuse":
        where = config.policy.source_file or config.policy.name
        hint = "correct the floor or the scenario; with `unreachable: warn` the policy would only say so"
        raise UsageError("\n  ".join((f"{where}: floors that cannot be reached", *unreachable)), hint=hint)
    return unreachable


Asked = Sequence[tuple[Rule, Cell, Floor]]
"""Floors that required rules set for the figures of a cell."""
NAMES: Final = {ACCEPTANCE_LENGTH: "an acceptance length", SPEEDUP: "a speed-up"}
"""Figures that cannot exceed the tokens of a cycle → their names."""
Known = Mapping[tuple[int, int], PointTimes]
"""(context, batch) → what an earlier run showed of the baseline there."""


def out_of_reach(required: Asked, plan: Plan, times: Known, memory: Bandwidth | None) -> Iterator[str]:
    """Yield a sentence for each floor that no run of `plan` can reach."""
    for rule, cell, floor in [(rule, cell, f) for rule, cell, f in required if f.least > cell.role.k + 1]:
        k, longer = cell.role.k, math.ceil(floor.least) - 1
        yield (
            f"rule {rule.id} asks for {NAMES[floor.figure]} of {floor.least:g} of {cell.key}: {k} drafts "
            f"per cycle give at most {k + 1}; "
            + (f"it takes spec-{longer} or more" if longer <= DRAFT_TOKENS else f"not even spec-{DRAFT_TOKENS} does")
        )
    for rule, cell, floor in speed_floors(required):
        scenario, known = plan.scenarios[cell.point.scenario], times.get((cell.point.context, cell.point.batch))
        # Of own prompts the context is only that of the longest.
        if known is not None and not scenario.workload.own:
            yield from beyond_speed(rule, cell, floor.least, scenario.budget, known, memory)


def speed_floors(required: Asked) -> list[tuple[Rule, Cell, Floor]]:
    """Return the floors of speed-ups that a cycle's tokens allow and that plain decoding does not reach."""
    return [a for a in required if a[2].figure == SPEEDUP and 1 < a[2].least <= a[1].role.k + 1]


def required_floors(policy: Policy, plan: Plan) -> Iterator[tuple[Rule, Cell, Floor]]:
    """Yield the floors that required rules set for acceptance length and speed-up, cell by cell."""
    for rule, floor in floors_of(policy):
        if rule.required and floor.figure in NAMES:
            yield from ((rule, cell, floor) for cell in plan.cells if cell.role.speculative and rule.matches(cell))


def beyond_speed(
    rule: Rule, cell: Cell, floor: float, budget: Budget, known: PointTimes, memory: Bandwidth | None
) -> Iterator[str]:
    """Yield a sentence if the times of the point put a speed floor out of reach."""
    k, step, prefill = cell.role.k, known.step_s, known.prefill_s
    cycle = least_cycle_s(known, cell.point.context, cell.point.batch, k, memory)
    asks = f"rule {rule.id} asks for a speed-up of {floor:g} of {cell.key}"
    at_least = f"a step takes {1e3 * step:.3g} ms and a cycle at least {1e3 * cycle:.3g} ms (run {known.run})"
    if budget.new_tokens is None:
        if (most := most_of_steps(k, step, cycle)) < floor:
            yield f"{asks}: at most {most:.2f} with every draft accepted, since {at_least}"
        return
    most = most_of_requests(k, step, cycle, prefill, budget.new_tokens)
    if most >= floor:
        return
    tokens = tokens_for(floor, k, step, cycle, prefill)
    less = prefill_for(floor, k, step, cycle, budget.new_tokens)
    if tokens is None or less is None:
        remedy = f"decoding alone gains at most {most_of_steps(k, step, cycle):.2f}, however long the answer"
    else:
        remedy = f"it takes {math.ceil(tokens):,} new tokens or more, or a prefill of {1e3 * less:.3g} ms or less"
    yield (
        f"{asks}: at most {most:.2f} with every draft accepted, since {budget.new_tokens} new tokens take "
        f"{1e3 * step * (budget.new_tokens - 1):.3g} ms beside a prefill of {1e3 * prefill:.3g} ms, and {at_least}; "
        f"{remedy}"
    )


# ── what an earlier run showed ───────────────────────────────────────────────────────────────────────────────────────


def times_of(
    points: set[Point], config: Config, out: Path, environment: Mapping[str, object]
) -> dict[tuple[int, int], PointTimes]:
    """(context, batch) → the baseline's times in the newest run of `out` that measured it, for those of `points`."""
    sizes = {(p.context, p.batch) for p in points}
    times_by_size: dict[tuple[int, int], PointTimes] = {}
    looked_at = 0
    for file in sorted(out.glob("*/run.json"), reverse=True):
        if sizes <= times_by_size.keys() or looked_at >= LOOKED_AT:
            break
        if (run := comparable(file.parent, config, environment)) is not None:
            looked_at += 1
            for where, times in of_run(run):
                times_by_size.setdefault(where, times)
    return times_by_size


def comparable(path: Path, config: Config, environment: Mapping[str, object]) -> Run | None:
    """The complete run in `path` if it measured what `config` measures, on this machine; else None."""
    folder = RunFolder(path, read_only=True)
    try:
        theirs = folder.read_config()
        dtypes = {s.dtype for s in theirs.scenarios.values()}
        same = (theirs.backend, theirs.pair.name, dict(theirs.options)) == (
            config.backend,
            config.pair.name,
            dict(config.options),
        )
        if not same or dtypes != {s.dtype for s in config.scenarios.values()}:
            return None
        run = folder.read_run()
    except SpecgateError:  # a run that cannot be read says nothing
        return None
    return run if run.status == "complete" and machine_of(run.environment) == machine_of(environment) else None


def machine_of(environment: Mapping[str, object]) -> tuple[object, ...]:
    """Parts of a machine that the times of an engine depend on: the CPU, and the names of the GPUs."""
    host: Any = environment.get("host") or {}
    gpus: Any = environment.get("gpus") or []
    return host.get("cpu"), *(gpu.get("name") for gpu in gpus if isinstance(gpu, dict))


def of_run(run: Run) -> Iterator[tuple[tuple[int, int], PointTimes]]:
    """(context, batch) and the times of every baseline cell that is complete."""
    for result in run.cells:
        point, engine = result.cell.point, run.engines.get(result.cell.point.key)
        step_ms, prefill = (result.values.get(name) for name in ("step_ms", "prefill_tok_s"))
        if result.cell.role != BASELINE or result.status != "ok" or run.scenarios[point.scenario].workload.own:
            continue
        if step_ms is None or prefill is None or not step_ms.value or not prefill.value:
            continue
        # Passes of a lossy engine read less than its traffic says: no floor follows from that.
        traffic = engine.traffic if engine and LOSSY not in engine.details else None
        prefill_s = point.context * point.batch / prefill.value
        times = PointTimes(run.id, prefill_s, step_ms.value / 1e3, traffic)
        yield (point.context, point.batch), times
