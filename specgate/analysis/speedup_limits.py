"""Limits of a pair's speed on this device, and the acceptance length that a speed gate would need."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from specgate.analysis.experts import independence_of, needed_overlap
from specgate.contract import SPEEDUP, Cell, Floor, Point, Rule, Run
from specgate.contract.cycle_budget import Ceiling, CycleBudget, Limit, Waterfall


def limit_of(split: Waterfall, base: CycleBudget, spec: CycleBudget, base_prefill: float) -> Limit | None:
    """The highest speed-ups; None where a floor is not known.

    `base_prefill`: the share of prefill in the baseline's time. Prefill is taken as it was measured.
    """
    of_base, of_spec = base.share_at_floor, spec.share_at_floor
    if of_base is None or of_spec is None:
        return None
    highest = split.with_decode(of_spec)
    return Limit(highest, highest * (base_prefill + (1 - base_prefill) * of_base))


def with_ceilings(run: Run, floors: Sequence[tuple[Rule, Floor]]) -> Run:
    """`run` with what the rules that set a floor for the speed-up ask of each of its cells."""
    budgets = dict(run.budgets)
    for result in run.cells:
        if (budget := budgets.get(result.cell.key)) and budget.waterfall:
            mine = [(rule.id, floor.least) for rule, floor in speed_floors(floors, result.cell)]
            overlap = overlap_at(run, result.cell.point, budget)
            ceilings = tuple(ceiling(rule, least, budget, budget.waterfall, overlap) for rule, least in mine)
            budgets[result.cell.key] = replace(budget, ceilings=ceilings)
    return replace(run, budgets=budgets)


def speed_floors(floors: Iterable[tuple[Rule, Floor]], cell: Cell) -> Iterator[tuple[Rule, Floor]]:
    """Yield the floors above 0 that are set for the speed-up of `cell`."""
    for rule, floor in floors:
        if floor.figure == SPEEDUP and floor.least > 0 and rule.matches(cell):
            yield rule, floor


def ceiling(
    rule: str, floor: float, budget: CycleBudget, split: Waterfall, overlap: OverlapAt = lambda _: None
) -> Ceiling:
    """Return the acceptance length that the speed rule called `rule` needs for its floor. `overlap`: see `overlap_at`.

    The number of cycles per token, and with it the decode time, is inversely proportional to the acceptance length;
    prefill stays as it is. A speed-up of `floor` leaves decoding the share x of its time, which takes 1/x times the
    acceptance length.
    """
    fixed, of_spec = split.prefill_share, budget.share_at_floor
    left = (split.speedup / floor - fixed) / (1 - fixed)
    needed = split.acceptance / left if left > 0 else None
    return Ceiling(
        rule=rule,
        min=floor,
        needed=needed,
        needed_at_floor=needed * of_spec if needed is not None and of_spec is not None else None,
        reachable=budget.limit.highest >= floor if budget.limit else None,
        needed_overlap=overlap(left),
    )


OverlapAt = Callable[[float], float | None]
"""Share of its time that decoding may take → the least overlap of experts with which the cycle at its floor does."""


def overlap_at(run: Run, point: Point, budget: CycleBudget) -> OverlapAt:
    """The overlap that decoding in a share of its time takes, as a function of that share. It gives None where the
    floor of the cycle or its experts are not known, and where no overlap would do.

    Everything but the experts that a pass touches stays as it was measured, the draft and the acceptance length too:
    the cycle at its floor may take a share of its time, what lies between the two is time for more experts or fewer, at
    the bandwidth, and from the number of these follows the overlap.
    """
    engine, use, share = run.engines.get(point.key), budget.experts, budget.share_at_floor
    experts = engine.traffic.target.experts if engine and engine.traffic else None
    if use is None or experts is None or share is None or run.bandwidth is None:
        return lambda _: None
    rows = {of.rows: of.passes for of in use.slots}
    independence = 1.0 if use.overlap is None else independence_of(experts, rows, use.overlap, use.touched)
    ms, bytes_per_s = sum(p.ms for p in budget.parts), run.bandwidth.bytes_per_s
    one = experts.layers * experts.expert_bytes * sum(rows.values()) / budget.cycles  # of each layer, per cycle

    def overlap(left: float) -> float | None:
        more = (left - share) * ms / 1e3 * bytes_per_s / one
        return needed_overlap(experts, rows, use.touched + more, independence)

    return overlap
