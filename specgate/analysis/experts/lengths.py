"""Speed-ups that shorter drafts could give with a mixture of experts, with everything at its floor.

Longer drafts touch more experts and are accepted less often in their last places, so the best length is often a short
one. A chain that was cut off after k tokens would have had the first k of the same drafts.
"""

from __future__ import annotations

from collections.abc import Iterator

from specgate.analysis.experts.overlap import independence_of, mean_touched
from specgate.contract import AcceptanceRecord, Cell
from specgate.contract.traffic import Traffic
from specgate.contract.cycle_budget import Bandwidth, CycleBudget, LengthLimit
from specgate.contract.traffic import Slot, draft_bytes, pass_bytes


def length_limits(
    record: AcceptanceRecord, cell: Cell, base: CycleBudget, spec: CycleBudget, traffic: Traffic, memory: Bandwidth
) -> Iterator[LengthLimit]:
    """For every draft length up to the cell's own, its speed-up with the baseline's step and its cycle at their floors:
    acceptance length × floor of the step / floor of the cycle, all slots being active at the cell's mean depth.

    Nothing for a target without experts, and where the overlap of these or the floor of the baseline is not known.
    """
    experts, use = traffic.target.experts, spec.experts
    if experts is None or use is None or use.overlap is None or base.floor_ms is None or not any(record.hist):
        return
    rows = {of.rows: of.passes for of in use.slots}
    independence = independence_of(experts, rows, use.overlap, use.touched)
    depth, batch = round(spec.depth), cell.point.batch
    for k in range(1, cell.role.k + 1):
        length = 1 + sum(min(accepted, k) * n for accepted, n in enumerate(record.hist)) / sum(record.hist)
        overlap = use.by_row[k].overlap if len(use.by_row) > k else use.overlap
        touched = mean_touched(experts, {(k + 1,) * batch: 1}, overlap or 0.0, independence)
        moved = pass_bytes(traffic.target, [Slot(depth, k + 1)] * batch, touched=touched * experts.layers)
        if traffic.draft:
            unread = round(length)  # tokens that the draft's first pass has not seen yet
            moved += draft_bytes(traffic.draft, [Slot(max(0, depth - unread), unread)] * batch, [k] * batch)
        floor_ms = moved.total / memory.bytes_per_s * 1e3
        yield LengthLimit(k, length, touched, floor_ms, length * base.floor_ms / floor_ms)
