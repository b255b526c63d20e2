"""Launches `kv_reserve.cu`."""

from __future__ import annotations

from specgate.backends.cupy_eagle3.kernels.heads import BLOCK
from specgate.backends.cupy_eagle3.kernels.kv_blocks import KVBlocks
from specgate.backends.cupy_eagle3.kernels.loader import Kernel
from specgate.backends.cupy_eagle3.kernels.slots import Slots


class KVReserve(Kernel):
    """Give every active slot blocks for `rows_per_slot` more positions, and check that what it may write is its own.

    Sets Fault.KV_EXHAUSTED (and stops all slots) or Fault.KV_INTEGRITY. Begins a step.
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
        self.launch(
            "kv_reserve",
            (1,),
            (self.slots,),
            {
                "block_table": kv.block_table,
                "held": kv.held,
                "owner": kv.owner,
                "free_blocks": kv.free_blocks,
                "free_count": kv.free_count,
                "fault": slots.fault,
                "length": slots.length,
                "active": slots.active,
                "active_count": slots.active_count,
                "stamps": slots.stamps,
                "step": slots.step,
            },
        )
