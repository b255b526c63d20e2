"""Outlook of a plan by the bytes of a pair with experts, before anything is measured: what a cycle costs, and which
overlap of experts the speed gates of a policy take.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from specgate import plugins
from specgate.analysis.experts import cycle_cost, overlap_for, overlap_of, step_bytes
from specgate.analysis.speedup_limits import speed_floors
from specgate.checkpoints.hf.target import target_geometry
from specgate.checkpoints.hf_keys import PLANTED, read_config
from specgate.checkpoints.turbomind import read_either
from specgate.contract import Cell, PairRef, Plan, Policy, Scenario, Traffic
from specgate.contract.protocols import ForetellsTraffic
from specgate.errors import CheckpointError
from specgate.planning.gates import floors_of

SHOWN: Final = 0.005
"""The least overlap that is not 0.00 in two decimals."""


def byte_outlook(plan: Plan, pair: PairRef, policy: Policy | None) -> Iterator[str]:
    """Lines for every point and draft length of `plan` with `pair`; none for a pair without experts, and for prompts
    whose lengths are their own. Where the pair cannot be read, as it can be another engine's, a line says why. Whole
    requests are left out, which a line says: prefill takes its share of their time.
    """
    whole = dict[str, None]()
    for point in plan.points:
        scenario = plan.scenarios[point.scenario]
        if scenario.workload.own:
            continue
        try:
            moved, planted = traffic_of(pair, scenario), planted_of(pair)
        except CheckpointError as error:
            yield "its bytes are not known: " + "; ".join(filter(None, (error.message, error.hint)))
            return
        if moved is None:
            continue
        traffic, gpus = moved
        if scenario.whole_requests:
            whole[point.scenario] = None
            continue
        where = f"{point.scenario} c{point.context} b{point.batch}"
        each = f" on each of {gpus} GPUs" if gpus > 1 else ""
        yield f"{where}: a step reads at least {amount(step_bytes(traffic, point.context, point.batch))}{each}"
        for role in scenario.roles:
            if role.speculative:
                yield from of_cell(traffic, Cell(point, role), planted, policy)
    if whole:
        yield (
            f"{', '.join(whole)}: whole requests, whose prefill takes time that bytes do not tell; a micro scenario of "
            "the same context and batch shows what a cycle costs"
        )


def amount(size: float) -> str:
    """`size` bytes in GB, or in MB where that is less than 0.1 GB."""
    return f"{size / 1e9:.2f} GB" if size >= 1e8 else f"{size / 1e6:.2f} MB"


def traffic_of(pair: PairRef, scenario: Scenario) -> tuple[Traffic, int] | None:
    """Return what the passes of `pair` must move on each GPU, and how many GPUs share the target: as the scenario says,
    where the target can be divided so. None where it has no experts. Raises CheckpointError for a pair that cannot be
    read; weights are not.
    """
    if target_geometry(read_config(pair.target), scenario.rope_keys).experts is None:
        return None
    if (engine := plugins.able(ForetellsTraffic)) is None:
        raise CheckpointError("no back end here counts the bytes of a pair's passes")
    return engine.traffic_of(pair, scenario)


@dataclass(frozen=True, slots=True)
class Planted:
    """Facts of a pair that was made from a seed.

    `lengths`: draft length → acceptance length. `touched[n]`: experts per layer that n + 1 neighbouring tokens touch;
    empty where nobody measured it.
    """

    lengths: Mapping[int, float]
    touched: Sequence[float]


def planted_of(pair: PairRef) -> Planted | None:
    """Return those facts from the config of the pair's draft; None for a pair that was not planted. Raises
    CheckpointError.
    """
    section = read_either(pair.draft).part(PLANTED) if pair.draft else None
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
    """Return what a cycle costs, what it gives if that is known beforehand, and what each speed rule of the policy
    takes.
    """
    where = (cell.point.context, cell.point.batch, cell.role.k)
    alike, apart = (cycle_cost(traffic, *where, overlap) for overlap in (1.0, 0.0))
    yield (
        f"  a {cell.role} cycle reads {alike:.2f} times as much if all tokens of a request choose the same experts "
        f"(overlap 1), {apart:.2f} times if each chooses for itself (overlap 0); with step and cycle at their floors, "
        "speculation pays from an acceptance length (AL) of that number on"
    )
    overlap = planted_overlap(traffic, cell, planted)
    length = planted.lengths.get(cell.role.k) if planted else None
    if length is not None and overlap is not None:
        gives = length / cycle_cost(traffic, *where, overlap)
        yield (
            f"  the planted AL of {length:.2f} and an expert overlap of {overlap:.2f} give {gives:.2f}× with step and "
            "cycle at their floors"
        )
    for rule, floor in speed_floors(floors_of(policy), cell) if policy else ():
        yield f"  {rule.id} (min {floor.least:g}×): {asked(traffic, cell, floor.least, length, overlap)}"


def asked(traffic: Traffic, cell: Cell, floor: float, length: float | None, overlap: float | None) -> str:
    """Return what a speed-up of `floor` takes with step and cycle at their floors, in words. `length`, `overlap`:
    acceptance length and expert overlap, where they are known beforehand.
    """
    where, most = (cell.point.context, cell.point.batch, cell.role.k), cell.role.k + 1
    least, independent = (max(1.0, floor * cycle_cost(traffic, *where, o)) for o in (1.0, 0.0))
    if least > most:
        best = most / cycle_cost(traffic, *where, 1.0)
        return f"out of reach with step and cycle at their floors: {best:.2f}× at most, at AL {most} and overlap 1"
    if length is not None:
        needed = overlap_for(traffic, *where, length / floor)
        if needed is None:
            return (
                f"the planted AL of {length:.2f} does not do at any overlap; it takes an AL of {least:.2f} at overlap 1"
            )
        now = "" if overlap is None else f" (it is {overlap:.2f})"
        takes = f"takes an expert overlap of {needed:.2f} or more{now}" if needed >= SHOWN else "takes no overlap"
        return f"at the planted AL of {length:.2f}, it {takes}"
    if (needed := overlap_for(traffic, *where, most / floor) or 0.0) < SHOWN:
        return f"it takes an AL of {least:.2f} at overlap 1, {min(independent, most):.2f} at overlap 0"
    return f"it takes an AL of {least:.2f} at overlap 1; below an overlap of {needed:.2f} not even AL {most} would do"


def planted_overlap(traffic: Traffic, cell: Cell, planted: Planted | None) -> float | None:
    """The overlap of a verification's tokens that was measured when the pair was planted; None where it was not."""
    experts, tokens = traffic.target.experts, cell.role.k + 1
    if experts is None or planted is None or len(planted.touched) < tokens:
        return None
    return overlap_of(experts, tokens, planted.touched[tokens - 1])
