"""Launchers of the kernels that draw tokens at a temperature."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows

WARP: Final = 32
MOST_THREADS: Final = 256
EACH: Final = 8
"""Columns of a thread, in kernels that give a row several blocks."""


@dataclass(frozen=True, slots=True)
class Division:
    """`blocks` blocks of `threads` threads, each thread with EACH columns, for a row of `columns` columns."""

    columns: int

    @property
    def threads(self) -> int:
        return threads_of(-(-self.columns // EACH), MOST_THREADS)

    @property
    def blocks(self) -> int:
        return -(-self.columns // (self.threads * EACH))

    @property
    def constants(self) -> dict[str, int]:
        return {"vocab": self.columns, "threads": self.threads, "columns": EACH}


def threads_of(work: int, most: int) -> int:
    """Whole warps for `work` things to do, at most `most` threads."""
    return min(most, -(-work // WARP) * WARP)


class BiasRows(Kernel):
    """Adds `bias` (float32 [V]) to every row of `logits` (float32 [R, V]) and makes `choices` (int64 [R]) anew.

    `best` int64 [R] and `finished` int32 [R] are zero before and after.
    """

    def __init__(self, vocab: int) -> None:
        self.vocab, self.division = vocab, Division(vocab)
        super().__init__("bias_rows", **self.division.constants)

    def __call__(
        self, logits: Tensor, choices: Tensor, best: Tensor, finished: Tensor, bias: Tensor, rows: Rows
    ) -> None:
        operands = {"logits": logits, "choices": choices, "best": best, "finished": finished, "bias": bias}
        self.launch((self.division.blocks, rows.most), rows, **operands)


BUCKETS: Final = 2048
"""Buckets of a row, as `masses.cuh` has them."""
EDGE: Final = 3
"""Numbers of an edge: its bucket, the mass before it, the mass of the row."""


def ranked(vocab: int, top_k: int) -> int:
    """`top_k` as kernels take it: one of all columns or more is none, which is 0."""
    return top_k if top_k < vocab else 0


class WeighRows(Kernel):
    """Leaves in `edges` (int64 [R, EDGE]) in which bucket of each row of `logits` (float32 [R, V]) top-k ends or,
    without it, top-p.

    `sums` int64 [R, BUCKETS] and `finished` int32 [R] are zero before and after. `choices` int64 [R]: the greedy
    choices, which stay.
    """

    def __init__(self, vocab: int, temperature: float, *, top_k: int, top_p: float) -> None:
        self.vocab, self.division = vocab, Division(vocab)
        super().__init__(
            "weigh_rows",
            temperature=float(temperature),
            top_k=ranked(vocab, top_k),
            top_p=float(top_p),
            **self.division.constants,
        )

    def __call__(
        self, edges: Tensor, sums: Tensor, finished: Tensor, logits: Tensor, choices: Tensor, rows: Rows
    ) -> None:
        operands = {"edges": edges, "sums": sums, "finished": finished, "logits": logits, "choices": choices}
        self.launch((self.division.blocks, rows.most), rows, **operands)


LISTED: Final = 1 << 14
"""Columns of a row that a list has room for: 128 KiB, a quarter of a large vocabulary's logits. Of a model's row
a bucket has some hundreds, and top-k keeps few. A row that needs more is read again and again.
"""


@dataclass(frozen=True, slots=True)
class Weighed:
    """Results of `WeighRows`, `edges` int64 [R, EDGE], and workspace for lists of columns: `listed` int64 [R, LISTED],
    and `list_sizes` int32 [R] and `finished` int32 [R], which are zero before and after.
    """

    edges: Tensor
    listed: Tensor
    list_sizes: Tensor
    finished: Tensor


class CutRows(Kernel):
    """Leaves in `cuts` (int64 [R]) the rank of the last column of each row that the filters keep, as `rank.cuh` has it.

    `weighed`: None where neither top-k nor top-p is asked for. `choices` int64 [R]: the greedy choices, which stay.
    """

    def __init__(
        self, vocab: int, temperature: float, *, top_k: int, top_p: float, min_p: float, listed: int = LISTED
    ) -> None:
        self.vocab, self.division, self.listed = vocab, Division(vocab), listed
        self.weighed = ranked(vocab, top_k) > 0 or top_p < 1
        self.threads = self.division.threads if self.weighed else WARP
        super().__init__(
            "cut_rows",
            temperature=float(temperature),
            top_k=ranked(vocab, top_k),
            top_p=float(top_p),
            min_p=float(min_p),
            listed=listed,
            **{**self.division.constants, "threads": self.threads},
        )

    def __call__(self, cuts: Tensor, weighed: Weighed | None, logits: Tensor, choices: Tensor, rows: Rows) -> None:
        blocks = self.division.blocks if self.weighed else 1
        self.launch((blocks, rows.most), weighed, rows, cuts=cuts, logits=logits, choices=choices)


MOST_COLUMNS: Final = 1 << 18
"""Of a row: a runner of the race has so many bits for its column."""


class Purpose(IntEnum):
    """Purpose of a race's random numbers, as `race.cuh` has it."""

    TARGET = 0
    DRAFT = 1


class DrawRows(Kernel):
    """Puts a drawn column of each row of `logits` (float32 [R, V]) in the place of its greedy choice (int64 [R]).

    `filtered`: what may be drawn is what `cuts` (int64 [R]) leaves. `mapped`: column c stands for the target's token
    `target_ids[c]` (int32 [V]), and has that token's random numbers, which are those of `purpose`. `nodes`: so many
    nodes may a slot's tree have, of which rows are the first; 0: rows are a chain.
    """

    def __init__(
        self,
        vocab: int,
        temperature: float,
        *,
        filtered: bool = False,
        mapped: bool = False,
        purpose: Purpose = Purpose.TARGET,
        nodes: int = 0,
    ) -> None:
        self.vocab, self.division = vocab, Division(vocab)
        self.filtered, self.mapped = filtered, mapped
        super().__init__(
            "draw_rows",
            temperature=float(temperature),
            filtered=int(filtered),
            mapped=int(mapped),
            purpose=int(purpose),
            **({"tree_rows": nodes} if nodes else {}),
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
        masks: Tensor | None = None,
    ) -> None:
        """`requests` int64 [S]: who the slots' requests are. `length` int32 [S]: committed positions of each.

        Row t of a slot is drawn for position `length` + 1 + `offset` + t, a node for that at its depth, which `masks`
        int64 [S, nodes] says. `best` int64 [R] and `finished` int32 [R] are
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
            masks=masks,
        )


def signed(word: int) -> int:
    """The low 32 bits of `word` as a C int has them."""
    low = word & 0xFFFFFFFF
    return low - (1 << 32) if low >> 31 else low
