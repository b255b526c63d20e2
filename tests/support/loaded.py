"""Runs of a server under load, from the fake engine's event loop on its scripted clock: no process, no waiting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from specgate.analysis.load.sweeps import break_evens
from specgate.backends.fake.engine import FakeEngine
from specgate.backends.fake.load import ServedLoad
from specgate.backends.fake.script import Script
from specgate.contract import Block, Budget, LatencyLimits, PairRef, Plan, Run, Scenario
from specgate.contract.load import Load
from specgate.contract.protocols import OpenRequest
from specgate.planning.arrivals import offered_load
from specgate.planning.plan import build_plan
from specgate.planning.prompts import Prompt
from specgate.run.point_blocks import make_block
from tests.support.factories import run_of, scenario

SCRIPT = Script(step_ns=1_000_000, draft_ns=100_000, row_ns=100_000, prefill_ns=1_000)
"""Speculation pays with up to about nine clients: a step of n requests takes 1 + 0.1 n ms, a cycle 1.3 + 0.4 n."""


def load_scenario(
    levels: Sequence[int] = (1, 2, 4, 8, 16),
    *,
    rates: Sequence[float] = (),
    requests: int = 2,
    prompt_sets: int = 4,
    rounds: int = 6,
    goodput: LatencyLimits | None = None,
) -> Scenario:
    made = scenario("sweep", "full", context=(16,), batch=levels, prompt_sets=prompt_sets, rounds=rounds)
    return replace(
        made,
        kind="load",
        budget=Budget(new_tokens=24),
        load=Load(requests, 1 if rates else 2, tuple(rates)),
        goodput=goodput,
    )


def served_blocks(
    plan: Plan, script: Script = SCRIPT, pace: Callable[[Script], Script] = lambda one: one
) -> list[Block]:
    """Every block of a load plan, as the fake engine serves it. `pace`: the script of the next block."""
    made: list[Block] = []
    for round_ in plan.rounds:
        workload, point = plan.scenarios[round_.point.scenario], round_.point
        request = OpenRequest(PairRef("p", Path("t"), Path("d")), "float32", point.batch, 4096, 3, False)
        engine = FakeEngine(script, request)
        engine.blocks = len(made)  # which block it is sets the jitter of its steps
        count = workload.prompts_in_set(point.batch, point.rate)
        prompts = [[round_.prompt_set, i] + [7] * (point.context - 2) for i in range(count)]
        texts = [Prompt(tuple(prompt), ()) for prompt in prompts]
        engine.seeds = [1000 * round_.prompt_set + i for i in range(count)]
        for position, role in enumerate(round_.order):
            engine.script = pace(script)
            decoded = ServedLoad(engine, role, prompts, workload.budget).run(offered_load(workload, round_, texts))
            made.append(make_block(round_, position, role, 0, 0, decoded))
    return made


def loaded_run(workload: Scenario | None = None, script: Script = SCRIPT, **changes: Any) -> Run:
    """A whole load run, without verdicts."""
    plan = build_plan([workload or load_scenario()], "fake")
    run = run_of(plan, served_blocks(plan, script), kind="load")
    return replace(run, break_even=break_evens(run.scenarios, run.comparisons, {}), **changes)
