"""Launches `commit.cu`."""

from __future__ import annotations

from specgate.backends.eagle3.cupy.kernels.heads import BLOCK
from specgate.backends.eagle3.cupy.kernels.loader import Kernel, announced
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

    @announced
    def __call__(self, kv: KVBlocks, slots: Slots) -> None:
        s = slots
        s.check(*s.drafts.shape)
        self.launch(
            "commit",
            (1,),
            (self.slots,),
            {
                "length": s.length,
                "last_token": s.last_token,
                "emitted": s.emitted,
                "truncated": s.truncated,
                "finish": s.finish,
                "out": s.out,
                "pending": s.pending,
                "counts": s.counts,
                "accepted_log": s.accepted_log,
                "held": kv.held,
                "owner": kv.owner,
                "free_blocks": kv.free_blocks,
                "free_count": kv.free_count,
                "fault": s.fault,
                "active": s.active,
                "active_count": s.active_count,
                "step": s.step,
                "stamps": s.stamps,
                "block_table": kv.block_table,
                "prompt_blocks": kv.prompt_blocks,
                "accepted": s.accepted,
                "target_tokens": s.target_tokens,
                "rule": s.rule,
            },
        )
