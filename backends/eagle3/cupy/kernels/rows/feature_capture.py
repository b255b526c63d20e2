"""Launches `feature_capture.cu`."""

from __future__ import annotations

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.rows.embed_rows import Replay
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows

THREADS = 1024


class FeatureCapture(Kernel):
    """features[slot, t, chunk] = x[r]: float32 [R, H] → bfloat16 [S, T, n·H], for the draft's next extension."""

    def __init__(
        self, hidden: int, features: int, rows_per_slot: int, max_rows: int, replay: Replay | None = None
    ) -> None:
        """`replay`: rows before those of the last token and the drafts are left out."""
        again = {"replays": 1, "drafts": replay.drafts} if replay else {}
        super().__init__(
            "feature_capture",
            hidden=hidden,
            features=features,
            rows=rows_per_slot,
            max_rows=max_rows,
            threads=THREADS,
            **again,
        )
        self.hidden, self.features, self.max_rows, self.replays = hidden, features, max_rows, replay is not None

    def __call__(
        self, features: Tensor, x: Tensor, rows: Rows, chunk: int, begins: tuple[Tensor, Tensor] | None = None
    ) -> None:
        """`begins`: of rows that begin with emitted tokens, int32 [S] each: where the last token stands, and where they
        begin. Raises ValueError where it is missing or not asked for.
        """
        length, verified = begins or (None, None)
        self.launch((rows.most,), rows, features=features, x=x, chunk=chunk, length=length, verified=verified)
