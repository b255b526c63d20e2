"""Counts, by the engine, of the experts that the target's passes over a block reached.

A pass has a row per token: of every slot that is active, its newest token and its drafts. An expert of a layer is
touched if the router sends a row to it; its weights are read then, once, however many rows it gets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from specgate.contract.types import Counts, Size


@dataclass(frozen=True, slots=True)
class PassCounts:
    """The passes of a block that had `rows` rows.

    `layers[layer][n]`: how many of them touched exactly n experts of the layer. It ends with the largest n that occurs.
    """

    rows: Size
    layers: tuple[Counts, ...]


@dataclass(frozen=True, slots=True)
class ExpertCounts:
    """The experts that the passes of a block touched.

    `touched[step]`: experts that the pass of a step touched, summed over the layers; 0 where no slot was active.
    `passes`: the same layer by layer, one entry per number of rows that occurs, in ascending order.
    `fresh[row]`: experts that this row of a slot chose and none of the slot's rows before it in the same pass, summed
        over layers, slots and steps. () where the engine does not count them.
    """

    touched: Counts
    passes: tuple[PassCounts, ...]
    fresh: Counts = ()


def counts_of(by_step: Sequence[Sequence[int]], rows: Sequence[int], fresh: Sequence[int] = ()) -> ExpertCounts:
    """The counts of a block whose step s had `rows[s]` rows that touched `by_step[s][layer]` experts of each layer.

    Raises ValueError where the two have not as many steps.
    """
    passes = []
    for n in sorted({n for n, _ in zip(rows, by_step, strict=True) if n}):
        of_layers = zip(*(step for step, rows_there in zip(by_step, rows, strict=True) if rows_there == n), strict=True)
        passes.append(PassCounts(n, tuple(map(histogram, of_layers))))
    return ExpertCounts(tuple(map(sum, by_step)), tuple(passes), tuple(fresh))


def histogram(values: Sequence[int]) -> tuple[int, ...]:
    """Counts of 0, 1, … among `values`, as far as the largest of them."""
    counts = Counter(values)
    return tuple(counts[n] for n in range(max(counts, default=-1) + 1))
