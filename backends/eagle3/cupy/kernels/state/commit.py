"""Launches `commit.cu`."""

from __future__ import annotations

from specgate.backends.eagle3.cupy.kernels.heads import BLOCK
from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.state.kv_blocks import KVBlocks
from specgate.backends.eagle3.cupy.kernels.state.slots import Slots


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
