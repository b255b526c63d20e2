"""Launchers of the kernels that keep the state of slots and of the cache's blocks."""

from __future__ import annotations

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.heads import BLOCK
from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.state.slots import KVBlocks, Rows, Slots


class KVReserve(Kernel):
    """Begins a step: gives every active slot blocks for `rows_per_slot` more positions, and checks that the slot owns
    all blocks that it may write.

    Sets Fault.KV_EXHAUSTED, which stops all slots, or Fault.KV_INTEGRITY.
    """

    def __init__(self, slots: int, rows_per_slot: int, positions: int, max_blocks: int, blocks: int) -> None:
        self.slots = slots
        super().__init__(
            "kv_reserve",
            slots=slots,
            rows=rows_per_slot,
            block=BLOCK,
            max_positions=positions,
            max_blocks=max_blocks,
            blocks=blocks,
        )

    def __call__(self, kv: KVBlocks, slots: Slots) -> None:
        self.launch((1,), kv, slots, threads=self.slots)


class Accept(Kernel):
    """Number of drafts of each slot that the target agrees with: the longest prefix that equals its choices (int64
    [R]).

    The choices are cleared again.
    """

    def __init__(self, rows_per_slot: int, max_rows: int) -> None:
        super().__init__("accept", rows=rows_per_slot, max_rows=max_rows)
        self.max_rows = max_rows

    def __call__(self, choices: Tensor, slots: Slots, rows: Rows) -> None:
        self.launch((1,), slots, rows, threads=rows.slots, choices=choices)


class AcceptForced(Kernel):
    """Accepts as many drafts of each slot as another run has recorded: `forced` int32 [steps, S], of this step.

    These count as the target's tokens, whatever its choices (int64 [R]) are, which are cleared again.
    """

    def __init__(self, slots: int, rows_per_slot: int, max_rows: int) -> None:
        """`slots`: of the engine."""
        super().__init__("accept_forced", slots=slots, rows=rows_per_slot, max_rows=max_rows)

    def __call__(self, choices: Tensor, forced: Tensor, slots: Slots, rows: Rows) -> None:
        self.launch((1,), slots, rows, threads=rows.slots, choices=choices, forced=forced)


class Commit(Kernel):
    """Ends a step: emits the accepted tokens up to an end, rewinds the others, gives their blocks back, and lists the
    slots that go on.
    """

    def __init__(
        self, slots: int, max_rows: int, capacity: int, max_blocks: int, most_emitted: int | None = None
    ) -> None:
        """`most_emitted`: tokens that a step emits at most; None: as many as it has rows."""
        self.slots = slots
        fewer = {} if most_emitted is None else {"most_emitted": most_emitted}
        super().__init__(
            "commit",
            slots=slots,
            max_rows=max_rows,
            capacity=capacity,
            max_blocks=max_blocks,
            block=BLOCK,
            **fewer,
        )

    def __call__(self, kv: KVBlocks, slots: Slots) -> None:
        self.launch((1,), kv, slots, threads=self.slots)
