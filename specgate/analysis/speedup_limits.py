"""Limits of a pair's speed on this device, and the acceptance length that a speed gate would need.

After a run that follows from its budgets (`limit_of`, `ceiling`). Before one it follows from what an earlier run showed
of the same point (`PointTimes`), however the run to come turns out: a cycle emits at most K + 1 tokens, and takes no
less time than a plain step, since it holds a pass over the target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from specgate.analysis.experts import independence_of, needed_overlap
from specgate.contract import SPEEDUP, Cell, Floor, Point, Rule, Run, Traffic
from specgate.contract.cycle_budget import Bandwidth, Ceiling, CycleBudget, Limit, Waterfall
from specgate.contract.traffic import Slot, draft_bytes, pass_bytes


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


# ── before anything is measured ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class PointTimes:
    """Times of the baseline at one point, as an earlier run measured them.

    `run`: its name.
    `prefill_s`: seconds that a prefill of all slots takes.
    `step_s`: seconds of a decode step.
    `traffic`: what the engine's passes must move; None where it does not say.
    """

    run: str
    prefill_s: float
    step_s: float
    traffic: Traffic | None


def least_cycle_s(times: PointTimes, context: int, batch: int, k: int, memory: Bandwidth | None) -> float:
    """Seconds that a cycle of `k` drafts takes at least: no less than a step of the baseline, and no less than its
    bytes at the read bandwidth of the memory, where that is known.

    A cycle reads what a pass over K + 1 tokens per slot and the draft's K passes read, at the context's own depth. What
    fits the caches in front of the memory is left out, since it need not be read from there. Of experts, it reads those
    of one token, as if all tokens chose the same.
    """
    if memory is None or times.traffic is None or times.traffic.draft is None:
        return times.step_s
    experts = times.traffic.target.experts
    fewest = experts.layers * experts.active if experts else None
    slots = [Slot(context, k + 1)] * batch
    verify = pass_bytes(times.traffic.target, slots, touched=fewest)
    draft = draft_bytes(times.traffic.draft, [Slot(context - 1, 1)] * batch, [k] * batch)
    read = (verify + draft).total - (memory.cache_bytes or 0)
    return max(times.step_s, read / memory.bytes_per_s)


def most_of_steps(k: int, step_s: float, cycle_s: float) -> float:
    """The highest speed-up where prefill is left out: K + 1 tokens in the least time of a cycle."""
    return (k + 1) * step_s / cycle_s


def most_of_requests(k: int, step_s: float, cycle_s: float, prefill_s: float, new_tokens: int) -> float:
    """The highest speed-up of whole requests: (P + n·s) / (P + n·c/(K + 1)) with prefill P, step s, least cycle c.

    `n` is one less than `new_tokens`, since the first one comes from the prefill. A request that ends before its limit
    has a larger share of prefill, and so a lower bound.
    """
    n = new_tokens - 1
    return (prefill_s + n * step_s) / (prefill_s + n * cycle_s / (k + 1))


def tokens_for(floor: float, k: int, step_s: float, cycle_s: float, prefill_s: float) -> float | None:
    """New tokens from which on `most_of_requests` is `floor`; None where no number would do."""
    gain = step_s - floor * cycle_s / (k + 1)
    return 1 + (floor - 1) * prefill_s / gain if gain > 0 else None


def prefill_for(floor: float, k: int, step_s: float, cycle_s: float, new_tokens: int) -> float | None:
    """Seconds of prefill at which `most_of_requests` is `floor`, which is above 1; None where none would do."""
    gain = step_s - floor * cycle_s / (k + 1)
    return (new_tokens - 1) * gain / (floor - 1) if gain > 0 else None
