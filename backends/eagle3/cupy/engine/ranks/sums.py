"""Sums over all ranks of what their products leave, for the many rows of a prefill.

Every rank reads the others' parts where they lie, over NVLink, while it adds them to the stream; no kernel waits for
another GPU, only streams do, for events.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.engine.prefill import CHUNK, PrefillMode, add
from specgate.backends.eagle3.cupy.memory.peers import reachable


def sums_bytes(hidden: int, rows: int = CHUNK) -> int:
    """Return their bytes on each GPU."""
    return 2 * 2 * rows * hidden


class PartialSums:
    """Room for one product's parts on every rank, twice, so that the next product need not wait for its readers.

    A rank writes part n + 2 where n was. Its stream has then waited for the others' part n + 1, and each of them has
    made that after it had read part n.
    """

    def __init__(
        self, streams: Sequence[torch.cuda.Stream | None], devices: Sequence[torch.device], rows: int, hidden: int
    ) -> None:
        """`streams`: on which each rank computes; None on a CPU."""
        self.streams, self._turn = streams, 0
        self._parts = [[reachable((rows, hidden), device, torch.bfloat16) for device in devices] for _ in range(2)]
        new_event: Any = torch.cuda.Event
        self._made: list[Any] = [new_event() if device.type == "cuda" else None for device in devices]

    def begin(self, rows: int) -> list[Tensor]:
        """Return the buffers into which every rank's product of `rows` rows writes its part, bfloat16 [rows, H]."""
        self._turn = 1 - self._turn
        return [part[:rows] for part in self._parts[self._turn]]

    def end(self) -> None:
        """All parts have been enqueued. What is enqueued from now on, on the stream of any rank, may read them."""
        for stream, made in zip(self.streams, self._made, strict=True):
            if stream is not None:
                made.record(stream)
        for stream in self.streams:
            for other, made in zip(self.streams, self._made, strict=True):
                if stream is not None and other is not stream:
                    stream.wait_event(made)


def add_parts(
    x: Tensor, parts: Sequence[Tensor], weight: Tensor, eps: float, mode: PrefillMode, normed: Tensor | None = None
) -> Tensor:
    """x float32 [R, H] += part of rank 0, += part of rank 1, …; returns its norm with `weight`, bfloat16 [R, H]:
    `normed`, if given.

    Ranks add in the same order, so that they get the same bits.
    """
    normed = torch.empty_like(x, dtype=torch.bfloat16) if normed is None else normed
    for part in parts:
        # A kernel of ours reads another GPU's memory as its own; torch does not.
        add(x, part if mode.fused else part.to(x.device), weight, eps, mode, normed)
    return normed
