"""Launches `end_chains.cu`."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.loader import Kernel, announced, expect
from specgate.backends.eagle3.cupy.kernels.state.chains import Chains
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows

THREADS: Final = 256
COLUMNS_PER_PART: Final = 2048
"""Columns that a block takes: one row of 32,000 is read by 16 SMs, and few blocks count themselves."""
MOST_PARTS: Final = 64
"""A lane of a warp adds up two parts at most."""


def parts_of(columns: int) -> int:
    """How many blocks share a row."""
    return min(MOST_PARTS, -(-columns // COLUMNS_PER_PART))


class EndChains(Kernel):
    """Ends the chains of the rows whose draft is less than `confidence` sure of all tokens up to this one, and lists
    those that go on.
    """

    def __init__(self, columns: int, drafts: int, slots: int, confidence: float) -> None:
        """`columns`: of the draft's vocabulary; `drafts`: tokens of a whole chain; `slots`: of the engine."""
        self.columns, self.parts, self.confidence = columns, parts_of(columns), confidence
        super().__init__(
            "end_chains",
            columns=columns,
            wide=1 if columns % 4 else 4,
            parts=self.parts,
            drafts=drafts,
            slots=slots,
            threads=THREADS,
        )

    @announced
    def __call__(self, chains: Chains, logits: Tensor, choices: Tensor, rows: Rows, *, index: int) -> None:
        """Behind draft token `index` of the slots of `rows`: `logits` float32 [S, W], of which `choices` int64 [S] are
        the greedy ones, as the LM head leaves them; they stay.
        """
        onto = chains.rows(index + 1, rows)
        expect("logits", logits, (rows.slots, self.columns), torch.float32)
        expect("choices", choices, (rows.slots,), torch.int64)
        expect("partial", chains.partial, (rows.slots * self.parts,), torch.float32)
        self.launch(
            "end_chains",
            (self.parts, rows.slots),
            (THREADS,),
            {
                "sure": chains.sure,
                "chain_length": chains.length,
                "onward": chains.onward,
                "live": onto.active,
                "live_count": onto.active_count,
                "partial": chains.partial,
                "finished": chains.finished,
                "logits": logits,
                "choices": choices,
                "active": rows.active,
                "active_count": rows.active_count,
                "index": index,
                "confidence": self.confidence,
            },
        )
