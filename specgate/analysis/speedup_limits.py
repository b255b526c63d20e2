"""How fast a pair could be on this device, and which acceptance length a speed gate would need."""

from __future__ import annotations

from dataclasses import replace

from specgate.core import Policy, Run
from specgate.core.cycle_budget import Ceiling, CycleBudget, Limit, Waterfall


def limit_of(found: Waterfall, base: CycleBudget, spec: CycleBudget, base_prefill: float) -> Limit | None:
    """The highest speed-ups; None where a floor is not known.

    `base_prefill`: the share of prefill in the baseline's time. Prefill is taken as it was measured.
    """
    of_base, of_spec = base.share_at_floor, spec.share_at_floor
    if of_base is None or of_spec is None:
        return None
    highest = found.with_decode(of_spec)
    return Limit(highest, highest * (base_prefill + (1 - base_prefill) * of_base))


def with_ceilings(run: Run, policy: Policy) -> Run:
    """`run` with what the speed rules of `policy` ask of each of its cells."""
    budgets = dict(run.budgets)
    for result in run.cells:
        if (budget := budgets.get(result.cell.key)) and budget.waterfall:
            rules = [r for r in policy.rules if r.gate == "speed" and r.matches(result.cell)]
            asked = [(r.id, floor) for r in rules if (floor := float(r.params["min"])) > 0]
            found = tuple(ceiling(rule, floor, budget, budget.waterfall) for rule, floor in asked)
            budgets[result.cell.key] = replace(budget, ceilings=found)
    return replace(run, budgets=budgets)


def ceiling(rule: str, floor: float, budget: CycleBudget, found: Waterfall) -> Ceiling:
    """What the speed rule called `rule` with the floor `floor` asks for.

    The number of cycles per token, and with it the decode time, is inversely proportional to the acceptance length;
    prefill stays as it is. A speed-up of `floor` leaves decoding the share x of its time, which takes 1/x times the
    acceptance length.
    """
    fixed, of_spec = found.prefill_share, budget.share_at_floor
    left = (found.speedup / floor - fixed) / (1 - fixed)
    needed = found.acceptance / left if left > 0 else None
    return Ceiling(
        rule=rule,
        min=floor,
        needed=needed,
        needed_at_floor=needed * of_spec if needed is not None and of_spec is not None else None,
        reachable=budget.limit.highest >= floor if budget.limit else None,
    )
