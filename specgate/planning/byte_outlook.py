"""What the bytes of a pair with experts say of a plan, before anything is measured: what a cycle costs, and which
overlap of experts the speed gates of a policy take.
"""

from __future__ import annotations

from collections.abc import Iterator

from specgate.analysis.experts.beforehand import cycle_cost, overlap_for, step_bytes
from specgate.core import Cell, PairRef, Plan, Policy, Scenario, Traffic
from specgate.eagle3.hf.target import target_geometry
from specgate.eagle3.hf_keys import read_config
from specgate.errors import CheckpointError


def byte_outlook(plan: Plan, pair: PairRef, policy: Policy | None) -> Iterator[str]:
    """Lines for every point and draft length of `plan` with `pair`; none for a pair without experts, and for prompts
    whose lengths are their own. Where the pair cannot be read, as it can be another engine's, a line says why.
    """
    for point in plan.points:
        scenario = plan.scenarios[point.scenario]
        if scenario.workload.own:
            continue
        try:
            traffic = traffic_of(pair, scenario)
        except CheckpointError as error:
            yield f"its bytes are not known: {error.message}"
            return
        if traffic is None:
            continue
        where = f"{point.scenario} c{point.context} b{point.batch}"
        yield f"{where}: a step reads {step_bytes(traffic, point.context, point.batch) / 1e9:.2f} GB at least"
        for role in scenario.roles:
            if role.speculative:
                yield from of_cell(traffic, Cell(point, role), policy)


def traffic_of(pair: PairRef, scenario: Scenario) -> Traffic | None:
    """What the passes of `pair` must move; None where its target has no experts. Raises CheckpointError for a pair that
    cannot be read; weights are not.
    """
    if target_geometry(read_config(pair.target), scenario.rope).experts is None:
        return None
    import torch

    from specgate.eagle3.pair import open_draft, open_target
    from specgate.eagle3.traffic import pair_traffic

    target = open_target(pair.target, scenario.rope).geometry
    draft = open_draft(pair.draft, target).geometry if pair.draft else None
    return pair_traffic(target, draft, getattr(torch, scenario.dtype))


def of_cell(traffic: Traffic, cell: Cell, policy: Policy | None) -> Iterator[str]:
    """What a cycle costs, and what each speed rule of the policy takes at the acceptance length that it asks for."""
    where = (cell.point.context, cell.point.batch, cell.role.k)
    alike, apart = (cycle_cost(traffic, *where, overlap) for overlap in (1.0, 0.0))
    yield (
        f"  a {cell.role} cycle {alike:.2f} times that if the tokens of a request share all experts, {apart:.2f} times "
        "if none: at their floors it pays from such an acceptance length on"
    )
    rules = [rule for rule in policy.rules if rule.matches(cell)] if policy else []
    lengths = [(float(rule.params["min"]), rule.id) for rule in rules if rule.gate == "acceptance"]
    length, asker = max(lengths, default=(cell.role.k + 1.0, ""))
    at = f"at the AL of {length:g} that {asker} asks for" if asker else f"with every draft accepted (AL {length:g})"
    for rule in rules:
        if rule.gate == "speed" and (floor := float(rule.params["min"])) > 0:
            needed = overlap_for(traffic, *where, length / floor)
            if needed is None:
                said = f"out of reach where all is at its floor: at most {length / alike:.2f}×"
            else:
                said = f"it takes an expert overlap of {needed:.2f} or more" if needed else "it takes no expert overlap"
            yield f"  {rule.id} (min {floor:g}×): {at}, {said}"
