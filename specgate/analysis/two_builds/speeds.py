"""Tokens per second of both sides of a comparison: the figure by which a sweep ranks the settings of an engine."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from specgate.analysis.paired_blocks import speed, throughput
from specgate.analysis.prompt_acceptance import length_counts
from specgate.analysis.two_builds.estimates import Difference, over_processes
from specgate.analysis.two_builds.quantities import Both, firsts_of
from specgate.analysis.two_builds.reduce import SideSamples, cells_of
from specgate.contract import Block
from specgate.contract.samples.counters import FMHA_TILES
from specgate.contract.sweeps import CellSpeed
from specgate.contract.two_builds import Process


@dataclass(frozen=True, slots=True)
class Speeds:
    """Speeds of both sides by cell. `mean`: ln(new / old) of their tokens per second, the mean over process pairs and
    over the speculative cells, or over all cells where none drafts. `difference`: the same with its standard error;
    None for fewer than three process pairs.
    """

    old: Mapping[str, CellSpeed]
    new: Mapping[str, CellSpeed]
    mean: float
    difference: Difference | None


def speeds_of(old: SideSamples, new: SideSamples, processes: Sequence[Process]) -> Speeds | None:
    """The speeds of the blocks that both sides have; None where there are none.

    Speed is tokens per second and not per step: a setting of the draft may make steps shorter and drafts worse.
    """
    cells = [live for cell in cells_of(old, new) if (live := live_cell(cell)).old]
    of_each: dict[int, list[float]] = defaultdict(list)
    for cell in [c for c in cells if c.role.speculative] or cells:
        by_pair: dict[int, list[float]] = defaultdict(list)
        for a, b in cell.pairs:
            whole = old.plan.scenarios[a.point.scenario].whole_requests
            by_pair[a.worker_generation].append(math.log(speed(b, whole) / speed(a, whole)))
        for number, ratios in by_pair.items():
            of_each[number].append(statistics.fmean(ratios))
    if not of_each:
        return None
    difference = over_processes(of_each, firsts_of(processes))
    return Speeds(
        old={cell.cell: cell_speed(cell.old, old) for cell in cells},
        new={cell.cell: cell_speed(cell.new, old) for cell in cells},
        mean=difference.mean if difference else statistics.fmean(map(statistics.fmean, of_each.values())),
        difference=difference,
    )


def live_cell(cell: Both) -> Both:
    """`cell` without the rounds in which a side emitted nothing."""
    live = [(a, b) for a, b in cell.pairs if a.emitted and b.emitted and a.elapsed_ns and b.elapsed_ns]
    return replace(cell, old=[a for a, _ in live], new=[b for _, b in live])


def cell_speed(blocks: Sequence[Block], side: SideSamples) -> CellSpeed:
    """The speed of one cell's blocks, which must not be empty. `side`: whose plan has the scenario under its name."""
    whole_requests = side.plan.scenarios[blocks[0].point.scenario].whole_requests
    counts = length_counts(blocks)[0] if blocks[0].role.speculative else {}
    steps = sum(steps for _, steps in counts.values())
    length = sum(tokens for tokens, _ in counts.values()) / steps if steps else None
    return CellSpeed(throughput(blocks, whole_requests), length, tile_statistics([block.counters for block in blocks]))


def tile_statistics(counters: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Tiles of attention by their use, without the prefix that their counters have; empty where none were counted.

    Those of the last block that states them: an engine that logs them once has the same in every block, so that a sum
    would count them again.
    """
    stated = next((of for of in reversed(counters) if FMHA_TILES["total"] in of), {})
    return {name: stated[key] for name, key in FMHA_TILES.items() if key in stated}
