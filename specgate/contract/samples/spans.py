"""What an engine shows of its cache and its trees in drawn steps of an untimed run (`protocols.ShowsSpans`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from specgate.contract.types import FAIL_FAST, Count, Counts, Size, Tally, Tokens

Rows = Annotated[tuple[Counts, ...], FAIL_FAST]
"""A list of counts per slot."""


@dataclass(frozen=True, slots=True)
class StepSpans:
    """The cache right before one step writes, and the tree that this step verified.

    `step`: its number in the run, from 0.
    `lengths[slot]`: committed positions; -1 where the slot had already finished.
    `tables[slot]`: cache blocks in the order of positions, with those that the step may write.
    `writes[slot]`: (first position that the step may write, the one behind its last); (0, 0) where it had finished.
    `free`: the blocks that belong to no slot.
    `parents[slot][node]`: the node above it, the root first, whose entry is 0. () of a chain, or where it had finished.
    `masks[slot][node]`: the nodes that it looks at, ascending.
    """

    step: Count
    lengths: Annotated[tuple[Tally, ...], FAIL_FAST]
    tables: Rows
    writes: Rows
    free: Counts
    parents: Rows = ()
    masks: tuple[Rows, ...] = ()


@dataclass(frozen=True, slots=True)
class ShownSpans:
    """The drawn steps of a run, in their order: as many as it has reached.

    `block`: positions of a cache block. `blocks`: how many there are.
    `tokens[slot]`: what the run has emitted up to its last drawn step, beginning with the prefill token.
    """

    block: Size
    blocks: Size
    tokens: Tokens
    steps: tuple[StepSpans, ...]
