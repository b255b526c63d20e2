"""How fast a pair could be here, and what acceptance length a gate would take."""

from __future__ import annotations

from dataclasses import replace

from specgate.core import Policy, Run
from specgate.cycle_budget import Ceiling, CycleBudget, Limit, Waterfall
from specgate.waterfall import Sums


def at_floor(budget: CycleBudget) -> float | None:
    """The cycle's time with every part at its floor, as a share of what was measured; None where one is not known.

    A part that is faster than its floor (what it reads has stayed in a cache) is left as it is.
    """
    floors = [(p.ms, p.floor_ms) for p in budget.parts]
    if not floors or any(floor is None for _, floor in floors):
        return None
    return sum(min(ms, floor) for ms, floor in floors if floor is not None) / sum(ms for ms, _ in floors)


def limit_of(speedup: float, base: CycleBudget, spec: CycleBudget, base_sums: Sums, spec_sums: Sums) -> Limit | None:
    """None where a floor is not known. Prefill stays as it was measured."""
    of_base, of_spec = at_floor(base), at_floor(spec)
    if of_base is None or of_spec is None:
        return None
    highest = speedup / shrunk(spec_sums.prefill_share, of_spec)
    return Limit(highest, highest * shrunk(base_sums.prefill_share, of_base))


def shrunk(fixed: float, factor: float) -> float:
    """What is left of 1 where a share `fixed` of it stays and the rest is multiplied by `factor`."""
    return fixed + (1 - fixed) * factor


def with_ceilings(run: Run, policy: Policy) -> Run:
    """`run` with what the speed rules of `policy` ask of its cells."""
    budgets = dict(run.budgets)
    for result in run.cells:
        if (budget := budgets.get(result.cell.key)) and budget.waterfall:
            rules = [r for r in policy.rules if r.gate == "speed" and r.matches(result.cell)]
            asked = [(r.id, floor) for r in rules if (floor := float(r.params["min"])) > 0]
            found = tuple(ceiling(rule, floor, budget, budget.waterfall) for rule, floor in asked)
            budgets[result.cell.key] = replace(budget, ceilings=found)
    return replace(run, budgets=budgets)


def ceiling(rule: str, floor: float, budget: CycleBudget, found: Waterfall) -> Ceiling:
    """Cycles per token are inverse to the acceptance length, and so is decode time, while prefill stays: a speed-up of
    `floor` leaves decode the share x of its time, which takes 1/x times the length.
    """
    fixed, of_spec = found.prefill_share, at_floor(budget)
    left = (found.speedup / floor - fixed) / (1 - fixed)
    needed = found.acceptance / left if left > 0 else None
    return Ceiling(
        rule=rule,
        min=floor,
        needed=needed,
        needed_at_floor=needed * of_spec if needed is not None and of_spec is not None else None,
        reachable=budget.limit.highest >= floor if budget.limit else None,
    )
