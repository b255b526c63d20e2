"""Launchers of the kernels that keep the state of slots and of the cache's blocks."""

from __future__ import annotations

from specgate.backends.eagle3.cupy.kernels.heads import BLOCK
from specgate.backends.eagle3.cupy.kernels.loader import Kernel


class KVReserve(Kernel):
    """Begins a step: gives every active slot blocks for `rows` more positions, and checks that the slot owns all blocks
    that it may write.

    Sets Fault.KV_EXHAUSTED, which stops all slots, or Fault.KV_INTEGRITY.
    """

    slots: int
    rows: int
    max_positions: int
    max_blocks: int
    blocks: int
    block: int = BLOCK


class Accept(Kernel):
    """Number of drafts of each slot that the target agrees with: the longest prefix that equals its choices, which are
    cleared again. A slot has `rows` rows.
    """

    rows: int
    max_rows: int


class AcceptForced(Kernel):
    """Accepts as many drafts of each slot as another run has recorded for this step.

    These count as the target's tokens, whatever its choices are, which are cleared again. `slots`: of the engine.
    """

    slots: int
    rows: int
    max_rows: int


class Commit(Kernel):
    """Ends a step: emits the accepted tokens up to an end, rewinds the others, gives their blocks back, and lists the
    slots that go on.

    `most_emitted`: tokens that a step emits at most; None: as many as it has rows.
    """

    slots: int
    max_rows: int
    capacity: int
    max_blocks: int
    most_emitted: int | None = None
    block: int = BLOCK
