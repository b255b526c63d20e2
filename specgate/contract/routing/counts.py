"""Counts, by the engine, of the experts that the target's passes over a block reached.

A pass has a row per token: of every slot that is active, its newest token and its drafts. An expert of a layer is
touched if the router sends a row to it; its weights are read then, once, however many rows it gets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specgate.contract.types import Counts


@dataclass(frozen=True, slots=True)
class ExpertCounts:
    """The experts that the passes of a block touched.

    `touched[step]`: experts that the pass of a step touched, summed over the layers; 0 where no slot was active.
    `fresh[row]`: experts that this row of a slot chose and none of the slot's rows before it in the same pass, summed
        over layers, slots and steps. () where the engine does not count them.
    """

    touched: Counts
    fresh: Counts = ()


def counts_of(by_step: Sequence[Sequence[int]], fresh: Sequence[int] = ()) -> ExpertCounts:
    """Return the counts of a block whose step s touched `by_step[s][layer]` experts of each layer."""
    return ExpertCounts(tuple(map(sum, by_step)), tuple(fresh))
