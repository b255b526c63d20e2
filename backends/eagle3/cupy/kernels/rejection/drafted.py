"""Sizes of drafted tokens, for the kernels of rejection: `drafted.cuh`."""

from __future__ import annotations

from dataclasses import dataclass

from specgate.backends.eagle3.cupy.kernels.state.slots import Rows


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

    def check(self, rows: Rows) -> None:
        """Raise ValueError unless there is a row for each draft token and one behind them."""
        if rows.rows_per_slot != self.drafts + 1:
            raise ValueError(f"{rows.rows_per_slot} rows per slot for {self.drafts} draft tokens")
