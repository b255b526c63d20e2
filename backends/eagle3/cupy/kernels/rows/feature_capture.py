"""Launches `feature_capture.cu`."""

from __future__ import annotations

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.loader import ARGUMENT, Kernel, announced, expect
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

    @announced
    def __call__(
        self, features: Tensor, x: Tensor, rows: Rows, chunk: int, begins: tuple[Tensor, Tensor] | None = None
    ) -> None:
        """`begins`: of rows that begin with emitted tokens, int32 [S] each: where the last token stands, and where they
        begin. Raises ValueError where it is missing or not asked for.
        """
        if (begins is not None) != self.replays:
            raise ValueError(f"made for rows that begin with emitted tokens: {self.replays}")
        again: dict[str, ARGUMENT] = {} if begins is None else {"length": begins[0], "verified": begins[1]}
        expect("features", features, (rows.slots, self.max_rows, self.features * self.hidden), torch.bfloat16)
        expect("x", x, (rows.most, self.hidden), torch.float32)
        self.launch(
            "feature_capture",
            (rows.most,),
            (THREADS,),
            {
                "features": features,
                "x": x,
                "active": rows.active,
                "active_count": rows.active_count,
                "chunk": chunk,
                **again,
            },
        )
