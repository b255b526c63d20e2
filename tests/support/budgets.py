"""Runs whose cycles are split into phases, with the traffic and bandwidth that give the phases their floors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from specgate.analysis.cycle_accounting import cycle_budgets
from specgate.analysis.speedup_limits import with_ceilings
from specgate.contract import Block, EngineFacts, Policy, Rule, Run
from specgate.contract.cycle_budget import Bandwidth
from specgate.contract.traffic import DraftTraffic, PassTraffic, Traffic
from specgate.planning.gates import floors_of
from tests.support.factories import blocks_of, plan_of, policy_of, run_of, scenario

MEMORY = Bandwidth("2026-11-21T12:00:00+00:00", "NVIDIA H200", "GPU-1", 8 << 30, 30, 4.48e12, 0.003)
PASS = PassTraffic(15_000_000_000, 8192, ())
TRAFFIC = Traffic(PASS, DraftTraffic(PassTraffic(850_000_000, 0, ()), PassTraffic(750_000_000, 0, ())))


def asks(floor: float) -> Policy:
    """A policy with a speed gate for spec-3 at `floor`."""
    return policy_of(Rule("fast", "speed", True, role="spec-3", params={"min": floor}))


def split(made: Block) -> Block:
    """The block with its time divided among the phases of a cycle."""
    shares = {"draft": 0.15 if made.role.k else 0.0, "verify": 0.8, "accept": 0.001, "commit": 0.002}
    return replace(made, phase_ns={name: int(share * made.elapsed_ns) for name, share in shares.items()})


def with_traffic(run: Run, traffic: Traffic | None = TRAFFIC) -> dict[str, EngineFacts]:
    """The engines of a run with `traffic`, on the device whose bandwidth is `MEMORY`."""
    return {key: replace(f, traffic=traffic, device=MEMORY.device) for key, f in run.engines.items()}


def budgeted(
    change: Callable[[Block], Block] = split,
    *,
    floor: float = 2.5,
    kind: Literal["micro", "full"] = "micro",
    batch: int = 1,
    traffic: Traffic | None = TRAFFIC,
    bandwidth: Bandwidth | None = MEMORY,
    cycle_ns: int = 14_000_000,
    base_ns: int = 10_000_000,
) -> Run:
    """A run with cycle budgets, and with the ceilings that a speed gate of `floor` has for spec-3."""
    plan = plan_of(scenario(kind=kind, batch=(batch,)))
    blocks = blocks_of(plan, jitter=0, change=change, cycle_ns=cycle_ns, base_ns=base_ns)
    run = run_of(plan, blocks)
    engines = with_traffic(run, traffic)
    budgets = cycle_budgets(plan, run.cells, run.comparisons, blocks, engines, bandwidth)
    return with_ceilings(replace(run, budgets=budgets, bandwidth=bandwidth, engines=engines), floors_of(asks(floor)))
