"""Costs of speculation by its bytes alone, before anything was measured: step and cycle both at their floors."""

from __future__ import annotations

from specgate.analysis.experts.overlap import solved
from specgate.contract.traffic import Slot, Traffic, draft_bytes, pass_bytes


def step_bytes(traffic: Traffic, context: int, batch: int) -> float:
    """Bytes of a step of the baseline with `batch` slots that have `context` cached positions each."""
    return pass_bytes(traffic.target, [Slot(context, 1)] * batch).total


def cycle_cost(traffic: Traffic, context: int, batch: int, k: int, overlap: float) -> float:
    """Bytes of a cycle of `k` drafts over those of a step, where the tokens of a slot have that overlap of experts.

    It is the acceptance length from which on the cycle pays, if both are at their floors.
    """
    cycle = pass_bytes(traffic.target, [Slot(context, k + 1)] * batch, overlap=overlap)
    if traffic.draft:
        cycle += draft_bytes(traffic.draft, [Slot(context - 1, 1)] * batch, [k] * batch)
    return cycle.total / step_bytes(traffic, context, batch)


def overlap_for(traffic: Traffic, context: int, batch: int, k: int, cost: float) -> float | None:
    """The least overlap at which a cycle costs no more than `cost` steps; None where it costs more at any overlap."""
    if cycle_cost(traffic, context, batch, k, 0.0) <= cost:
        return 0.0
    if cycle_cost(traffic, context, batch, k, 1.0) > cost:
        return None
    return solved(lambda overlap: cycle_cost(traffic, context, batch, k, overlap) - cost, 0.0, 1.0)
