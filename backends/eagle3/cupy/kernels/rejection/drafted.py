"""What the kernels of rejection know of drafted tokens: `drafted.cuh`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.loader import expect
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows, Slots


@dataclass(frozen=True, slots=True)
class DraftedRows:
    """`drafts` draft tokens per slot, drawn from `draft_vocab` columns and judged by rows of `vocab`, in an engine of
    `slots` slots with up to `max_rows` rows each.
    """

    vocab: int
    draft_vocab: int
    drafts: int
    slots: int
    max_rows: int

    @property
    def constants(self) -> dict[str, int]:
        """But for `vocab`, which the division of a row into blocks tells."""
        return {
            "draft_vocab": self.draft_vocab,
            "drafts": self.drafts,
            "slots": self.slots,
            "max_rows": self.max_rows,
        }

    def check(
        self,
        logits: Tensor,
        choices: Tensor,
        cuts: Tensor | None,
        draft_logits: Tensor,
        draft_columns: Tensor,
        slots: Slots,
        rows: Rows,
        *,
        filtered: bool,
    ) -> None:
        """`logits` float32 [R, V] of the target, K + 1 rows of each active slot; their `choices` and `cuts` int64 [R];
        `draft_logits` float32 [K, S, W]: what draft token t of each active slot was drawn from; `draft_columns` int32
        [V]: the draft's column of each token, −1 for none. Raises ValueError for others.
        """
        if (cuts is not None) != filtered:
            raise ValueError(f"made for filtered = {filtered}")
        if rows.per_slot != self.drafts + 1:
            raise ValueError(f"{rows.per_slot} rows per slot for {self.drafts} draft tokens")
        expect("logits", logits, (rows.most, self.vocab), torch.float32)
        expect("choices", choices, (rows.most,), torch.int64)
        if cuts is not None:
            expect("cuts", cuts, (rows.most,), torch.int64)
        expect("draft_logits", draft_logits, (self.drafts, self.slots, self.draft_vocab), torch.float32)
        expect("draft_columns", draft_columns, (self.vocab,), torch.int32)
        slots.check(self.slots, self.max_rows)
