"""Step time of a cell by how many of its slots still decode: does a slot that has ended cost anything?"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence, Set

from specgate.contract import ActiveBin, Block


def by_active(
    blocks: Sequence[Block], *, withhold: bool, aside: Set[tuple[int, int]] = frozenset()
) -> tuple[ActiveBin, ...]:
    """One bin per number of active slots that a step had, from the fewest on. Steps without one are left out.

    With `withhold` the bins have no times. `aside`: (prompt set, round) of the blocks whose times do not count.
    """
    counts: dict[int, int] = defaultdict(int)
    times: dict[int, list[float]] = defaultdict(list)
    for block in blocks:
        timed = not withhold and (block.prompt_set, block.round) not in aside
        for step, row in enumerate(block.accepted):
            if active := sum(accepted >= 0 for accepted in row):
                counts[active] += 1
                if timed:
                    times[active].append(block.step_ns[step] / 1e6)
    return tuple(
        ActiveBin(active, steps, statistics.median(times[active]) if times[active] else None)
        for active, steps in sorted(counts.items())
    )
