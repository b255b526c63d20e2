"""Launches `kv_reserve.cu`."""

from __future__ import annotations

from specgate.backends.eagle3.cupy.kernels.heads import BLOCK
from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.state.kv_blocks import KVBlocks
from specgate.backends.eagle3.cupy.kernels.state.slots import Slots


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
