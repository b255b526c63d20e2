"""Step times by context depth, and by the number of active slots."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import Final

from specgate.analysis.stats import cluster_interval
from specgate.contract import ActiveBin, Block, DepthBin


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


BINS: Final = 8
"""The depths of a cell are divided into this many ranges of equal width. Ranges in which no step began are left out."""


@dataclass(slots=True)
class _Bin:
    depths: list[float] = field(default_factory=list)
    step_ms: list[float] = field(default_factory=list)
    accepted: dict[tuple[int, int], list[int]] = field(default_factory=lambda: defaultdict(list))
    """(prompt set, slot) → accepted draft tokens of every step that had a draft."""


def by_depth(
    blocks: Sequence[Block], *, withhold: bool, aside: Set[tuple[int, int]] = frozenset()
) -> tuple[DepthBin, ...]:
    """One bin per range of depth. The depth of a step is the mean over its active slots, in tokens.

    With `withhold` the bins have no times. `aside`: (prompt set, round) of the blocks whose times do not count.
    """
    depths = [list(step_depths(block)) for block in blocks]
    deepest = max((depth for of_block in depths for _, depth in of_block), default=0.0)
    bins = [_Bin() for _ in range(BINS)]
    for block, of_block in zip(blocks, depths, strict=True):
        timed = not withhold and (block.prompt_set, block.round) not in aside
        speculative = block.role.speculative
        for step, depth in of_block:
            depth_bin = bins[min(BINS - 1, int(BINS * depth / deepest)) if deepest else 0]
            depth_bin.depths.append(depth)
            if timed:
                depth_bin.step_ms.append(block.step_ns[step] / 1e6)
            if speculative:
                accepted = block.accepted[step]
                for slot, drafted in enumerate(block.drafted[step]):
                    if drafted > 0:
                        depth_bin.accepted[block.prompt_set, slot].append(accepted[slot])
    return tuple(_reduced(depth_bin) for depth_bin in bins if depth_bin.depths)


def step_depths(block: Block) -> Iterator[tuple[int, float]]:
    """(step, its depth) of every step that had an active slot.

    Depth is the mean, over the active slots, of the tokens beyond the prompt when the step began.
    """
    depths = [1] * len(block.tokens)  # the prefill token
    for step, row in enumerate(block.accepted):
        total = active = 0
        for slot, accepted in enumerate(row):
            if accepted >= 0:
                total += depths[slot]
                active += 1
                depths[slot] += accepted + 1
        if active:
            yield step, total / active


def _reduced(depth_bin: _Bin) -> DepthBin:
    emitted = [sum(accepts) + len(accepts) for accepts in depth_bin.accepted.values()]
    drafted = [len(accepts) for accepts in depth_bin.accepted.values()]
    interval = cluster_interval(emitted, drafted)
    return DepthBin(
        depth=statistics.fmean(depth_bin.depths),
        steps=len(depth_bin.depths),
        step_ms=statistics.median(depth_bin.step_ms) if depth_bin.step_ms else None,
        drafted_steps=sum(drafted),
        acceptance_length=sum(emitted) / sum(drafted) if drafted else None,
        ci_low=interval.low if interval else None,
        ci_high=interval.high if interval else None,
    )
