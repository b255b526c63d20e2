"""Launches `embed_rows.cu`."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import PreNormRows
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows, Slots

THREADS = 512


@dataclass(frozen=True, slots=True)
class Replay:
    """Rows that begin with tokens which were emitted before: of chains of `drafts` tokens; a text has up to `capacity`
    tokens.
    """

    drafts: int
    capacity: int


class EmbedRows(Kernel):
    """x[r] = the embedding (bfloat16 [V, H]) of the last token or a draft of a slot: float32 [R, H].

    Also leaves the input of the norm with weight bfloat16 [H]. Ends the draft phase.

    With `replay`, the rows of a slot begin with the tokens of its text from position `verified` [S] on.
    """

    def __init__(self, hidden: int, rows_per_slot: int, max_rows: int, replay: Replay | None = None) -> None:
        again = {"replays": 1, "drafts": replay.drafts, "capacity": replay.capacity} if replay else {}
        super().__init__("embed_rows", hidden=hidden, rows=rows_per_slot, max_rows=max_rows, threads=THREADS, **again)
        self.hidden, self.replays = hidden, replay is not None

    def __call__(
        self,
        x: Tensor,
        pre_norm: PreNormRows,
        embedding: Tensor,
        norm_weight: Tensor,
        slots: Slots,
        rows: Rows,
        verified: Tensor | None = None,
    ) -> None:
        """Raises ValueError where `verified` is given to a launcher that replays nothing, or is missing."""
        given = {"x": x, "embedding": embedding, "norm_weight": norm_weight, "verified": verified}
        self.launch((rows.most,), pre_norm, slots, rows, **given)
