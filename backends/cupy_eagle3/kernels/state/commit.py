"""Launches `commit.cu`."""

from __future__ import annotations

from specgate.backends.cupy_eagle3.kernels.heads import BLOCK
from specgate.backends.cupy_eagle3.kernels.loader import Kernel, announced
from specgate.backends.cupy_eagle3.kernels.state.kv_blocks import KVBlocks
from specgate.backends.cupy_eagle3.kernels.state.slots import Slots


class Commit(Kernel):
    """Ends a step: emits the accepted tokens up to an end, rewinds the others, gives their blocks back, and lists the
    slots that go on.
    """

    def __init__(self, slots: int, max_rows: int, capacity: int, max_blocks: int) -> None:
        self.slots = slots
        super().__init__(
            "commit", slots=slots, max_rows=max_rows, capacity=capacity, max_blocks=max_blocks, block=BLOCK
        )

    @announced
    def __call__(self, kv: KVBlocks, slots: Slots) -> None:
        s = slots
        s.check(*s.drafts.shape)
        self.launch(
            "commit",
            (1,),
            (self.slots,),
            *(s.length, s.last_token, s.emitted, s.truncated, s.finish, s.out, s.pending, s.counts, s.accepted_log),
            *(kv.held, kv.owner, kv.free_blocks, kv.free_count, s.fault, s.active, s.active_count, s.step, s.stamps),
            *(kv.block_table, kv.prompt_blocks, s.accepted, s.target_tokens, s.rule),
        )
