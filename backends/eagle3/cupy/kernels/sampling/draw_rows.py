"""Launches `draw_rows.cu`."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.sampling.blocks import Division
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows

MOST_COLUMNS: Final = 1 << 18
"""Of a row: a runner of the race has so many bits for its column."""


class Purpose(IntEnum):
    """Purpose of a race's random numbers, as `race.cuh` has it."""

    TARGET = 0
    DRAFT = 1


class DrawRows(Kernel):
    """Puts a drawn column of each row of `logits` (float32 [R, V]) in the place of its greedy choice (int64 [R]).

    `filtered`: what may be drawn is what `cuts` (int64 [R]) leaves. `mapped`: column c stands for the target's token
    `target_ids[c]` (int32 [V]), and has that token's random numbers, which are those of `purpose`.
    """

    def __init__(
        self,
        vocab: int,
        temperature: float,
        *,
        filtered: bool = False,
        mapped: bool = False,
        purpose: Purpose = Purpose.TARGET,
    ) -> None:
        self.vocab, self.division = vocab, Division(vocab)
        self.filtered, self.mapped = filtered, mapped
        super().__init__(
            "draw_rows",
            temperature=float(temperature),
            filtered=int(filtered),
            mapped=int(mapped),
            purpose=int(purpose),
            **self.division.constants,
        )

    def __call__(
        self,
        choices: Tensor,
        best: Tensor,
        finished: Tensor,
        logits: Tensor,
        requests: Tensor,
        length: Tensor,
        rows: Rows,
        *,
        seed: int,
        offset: int = 0,
        cuts: Tensor | None = None,
        target_ids: Tensor | None = None,
    ) -> None:
        """`requests` int64 [S]: who the slots' requests are. `length` int32 [S]: committed positions of each.

        Row t of a slot is drawn for position `length` + 1 + `offset` + t. `best` int64 [R] and `finished` int32 [R] are
        zero before and after. Raises ValueError for operands that this launcher was not made for.
        """
        self.launch(
            (self.division.blocks, rows.most),
            rows,
            choices=choices,
            best=best,
            finished=finished,
            logits=logits,
            cuts=cuts,
            target_ids=target_ids,
            requests=requests,
            length=length,
            offset=offset,
            seed_low=signed(seed),
            seed_high=signed(seed >> 32),
        )


def signed(word: int) -> int:
    """The low 32 bits of `word` as a C int has them."""
    low = word & 0xFFFFFFFF
    return low - (1 << 32) if low >> 31 else low
