"""What the bytes of a pair with experts say of a plan, before anything is measured: what a cycle costs, and which
overlap of experts the speed gates of a policy take.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from specgate.analysis.experts.beforehand import cycle_cost, overlap_for, step_bytes
from specgate.analysis.experts.overlap import overlap_of
from specgate.core import Cell, PairRef, Plan, Policy, Rule, Scenario, Traffic
from specgate.eagle3.hf.target import target_geometry
from specgate.eagle3.hf_keys import PLANTED, read_config
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
            traffic, planted = traffic_of(pair, scenario), planted_of(pair)
        except CheckpointError as error:
            yield f"its bytes are not known: {error.message}"
            return
        if traffic is None:
            continue
        where = f"{point.scenario} c{point.context} b{point.batch}"
        yield f"{where}: a step reads {step_bytes(traffic, point.context, point.batch) / 1e9:.2f} GB at least"
        for role in scenario.roles:
            if role.speculative:
                yield from of_cell(traffic, Cell(point, role), planted, policy)


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


@dataclass(frozen=True, slots=True)
class Planted:
    """What is known of a pair that was made from a seed.

    `lengths`: draft length → acceptance length. `touched[n]`: experts per layer that n + 1 neighbouring tokens touch;
    empty where nobody measured it.
    """

    lengths: Mapping[int, float]
    touched: Sequence[float]


def planted_of(pair: PairRef) -> Planted | None:
    """What the config of the pair's draft says of it; None for a pair that was not planted. Raises CheckpointError."""
    section = read_config(pair.draft).part(PLANTED) if pair.draft else None
    if section is None or not section.values:
        return None
    predicted, measured = section.part("predicted_acceptance_length"), section.part("measured")
    if odd := next((name for name in predicted.values if not re.fullmatch(r"spec-[1-9]", name)), None):
        raise predicted.wrong(odd, "spec-1, spec-2 and so on")
    lengths = {int(name.removeprefix("spec-")): predicted.number(name) for name in predicted.values}
    touched = measured.values.get("experts_touched", [])
    if not isinstance(touched, list) or any(isinstance(n, bool) or not isinstance(n, int | float) for n in touched):
        raise measured.wrong("experts_touched", "a list of numbers")
    return Planted(lengths, touched)


def of_cell(traffic: Traffic, cell: Cell, planted: Planted | None, policy: Policy | None) -> Iterator[str]:
    """What a cycle costs, what it gives if that is known beforehand, and what each speed rule of the policy takes."""
    where = (cell.point.context, cell.point.batch, cell.role.k)
    alike, apart = (cycle_cost(traffic, *where, overlap) for overlap in (1.0, 0.0))
    yield (
        f"  a {cell.role} cycle {alike:.2f} times that if the tokens of a request share all experts, {apart:.2f} times "
        "if none: at their floors it pays from such an acceptance length on"
    )
    overlap = planted_overlap(traffic, cell, planted)
    rules = [rule for rule in policy.rules if rule.matches(cell)] if policy else []
    length, at = length_of(cell, planted, rules)
    if planted and overlap is not None:
        gives = length / cycle_cost(traffic, *where, overlap)
        yield f"  {at} and an expert overlap of {overlap:.2f}, {gives:.2f}× with both at their floors"
    now = "" if overlap is None else f" (it is {overlap:.2f})"
    for rule in rules:
        if rule.gate == "speed" and (floor := float(rule.params["min"])) > 0:
            needed = overlap_for(traffic, *where, length / floor)
            if needed is None:
                said = f"out of reach where all is at its floor: at most {length / alike:.2f}×"
            else:
                said = f"it takes an expert overlap of {needed:.2f} or more{now}" if needed else "it takes no overlap"
            yield f"  {rule.id} (min {floor:g}×): {at}, {said}"


def planted_overlap(traffic: Traffic, cell: Cell, planted: Planted | None) -> float | None:
    """The overlap of a verification's tokens that was measured when the pair was planted; None where it was not."""
    experts, tokens = traffic.target.experts, cell.role.k + 1
    if experts is None or planted is None or len(planted.touched) < tokens:
        return None
    return overlap_of(experts, tokens, planted.touched[tokens - 1])


def length_of(cell: Cell, planted: Planted | None, rules: Sequence[Rule]) -> tuple[float, str]:
    """The acceptance length to reckon with, and where it is from: planted, asked for, or the longest possible."""
    if planted and (length := planted.lengths.get(cell.role.k)):
        return length, f"at the planted AL of {length:.2f}"
    asked = [(float(rule.params["min"]), rule.id) for rule in rules if rule.gate == "acceptance"]
    if asked:
        length, rule_id = max(asked)
        return length, f"at the AL of {length:g} that {rule_id} asks for"
    return cell.role.k + 1.0, f"with every draft accepted (AL {cell.role.k + 1})"
