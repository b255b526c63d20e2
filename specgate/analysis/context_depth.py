"""Acceptance length and step time of a cell by depth: how many tokens the KV cache holds beyond the prompt."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import Final

from specgate.analysis.stats import cluster_interval
from specgate.core import Block, DepthBin

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
    bins: dict[int, _Bin] = defaultdict(_Bin)
    for block, of_block in zip(blocks, depths, strict=True):
        for step, depth in of_block:
            found = bins[min(BINS - 1, int(BINS * depth / deepest)) if deepest else 0]
            found.depths.append(depth)
            if not withhold and (block.prompt_set, block.round) not in aside:
                found.step_ms.append(block.step_ns[step] / 1e6)
            if block.role.speculative:
                for slot, drafted in enumerate(block.drafted[step]):
                    if drafted > 0:
                        found.accepted[block.prompt_set, slot].append(block.accepted[step][slot])
    return tuple(_reduced(bins[i]) for i in sorted(bins))


def step_depths(block: Block) -> Iterator[tuple[int, float]]:
    """(step, its depth) of every step that had an active slot.

    Depth is the mean, over the active slots, of the tokens beyond the prompt when the step began.
    """
    depths = [1] * len(block.tokens)  # the prefill token
    for step, row in enumerate(block.accepted):
        active = [slot for slot, a in enumerate(row) if a >= 0]
        if active:
            yield step, sum(depths[slot] for slot in active) / len(active)
        for slot in active:
            depths[slot] += row[slot] + 1


def _reduced(found: _Bin) -> DepthBin:
    emitted = [sum(accepts) + len(accepts) for accepts in found.accepted.values()]
    drafted = [len(accepts) for accepts in found.accepted.values()]
    interval = cluster_interval(emitted, drafted)
    return DepthBin(
        depth=statistics.fmean(found.depths),
        steps=len(found.depths),
        step_ms=statistics.median(found.step_ms) if found.step_ms else None,
        drafted_steps=sum(drafted),
        acceptance_length=sum(emitted) / sum(drafted) if drafted else None,
        ci_low=interval.low if interval else None,
        ci_high=interval.high if interval else None,
    )
