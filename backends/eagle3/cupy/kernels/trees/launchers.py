"""Launchers of the kernels of draft trees."""

from __future__ import annotations

from typing import Final

from specgate.backends.eagle3.cupy.kernels.heads import Heads
from specgate.backends.eagle3.cupy.kernels.loader import Kernel


class TreeToken(Kernel):
    """The tokens of nodes `first_node` … of every active slot, a level of a tree; then the input of the draft's next
    level. `top`: how many tokens behind a source row are asked for at most.

    The draft ran on `sources` rows per slot, and runs on `rows` of the level's nodes next. Their input goes to `input`
    and their stream to `next_stream`; their hidden state is that of their parent's row in `stream`, or, in heads that
    feed their normed output back, what the rows of the norm become.
    """

    hidden: int
    draft_vocab: int
    norm_output: bool
    norm_before_residual: bool
    max_rows: int
    top: int
    first_node: int
    nodes: int
    sources: int
    rows: int
    threads: int = 512

    def __post_init__(self) -> None:
        """Raises ValueError for more tokens than the draft has."""
        if not 0 < self.top <= self.draft_vocab:
            raise ValueError(f"the {self.top} likeliest of {self.draft_vocab} tokens")
        super().__post_init__()


COLUMNS_PER_PART: Final = 4096
"""Columns that a block takes: enough blocks to read a few rows fast, and few enough lists to join."""
MOST_PARTS: Final = 32
"""A lane of a warp joins one list."""


def parts_of(columns: int) -> int:
    """Return the number of blocks that share a row."""
    return min(MOST_PARTS, -(-columns // COLUMNS_PER_PART))


class TreeTop(Kernel):
    """The `top` largest of each row of logits, float32 [R, V], in parts: int64 [R, parts, top], packed as choices.

    Of equal logits the lower column comes first. NaN and infinity come before every number. Also what a softmax needs
    of each part: float32 [R, parts, 2], its largest logit and the sum of the powers of e below that.
    """

    columns: int
    top: int
    threads: int = 256

    def __post_init__(self) -> None:
        """Raises ValueError for more tokens than there are columns."""
        if not 0 < self.top <= self.columns:
            raise ValueError(f"the {self.top} largest of {self.columns} columns")
        super().__post_init__()

    @property
    def constants(self) -> dict[str, int | float]:
        wide = 1 if self.columns % 4 else 4
        return {**super().constants, "wide": wide, "parts": parts_of(self.columns)}


def above(level: int, width: int) -> dict[str, int]:
    """Return the constants of what lies above a level: rows that the draft ran on, and where its candidates begin."""
    return {"sources": 1, "begin": 0} if level == 1 else {"sources": width, "begin": width + (level - 2) * width**2}


class TreeGrow(Kernel):
    """Choice of a level's candidates that the draft runs on next, the `width` likeliest of every active slot, and its
    input. `level`: whose candidates these are, from 1 on. `pool`, `forest`: candidates and rows of the largest tree.

    The draft ran on one row per slot at level 1, and on `width` below that. `input` and `next_stream` are as in
    `TreeToken`; `masks`: of the forest.
    """

    hidden: int
    draft_vocab: int
    norm_output: bool
    norm_before_residual: bool
    width: int
    level: int
    pool: int
    forest: int
    threads: int = 512

    @property
    def constants(self) -> dict[str, int | float]:
        width, level = self.width, self.level
        own = {"parts": parts_of(self.draft_vocab), "top": width, "rows": width, "first": (level - 1) * width}
        return {**super().constants, **above(level, width), **own}


class TreeChoose(Kernel):
    """The tree of every active slot: tokens, parents and masks of the `nodes` likeliest candidates of `levels` levels.

    The draft ran on the last level's sources: one row per slot in a tree of one level, else `width`. `pool`, `forest`:
    candidates and rows of the largest tree of the engine, which has `max_rows` rows.
    """

    draft_vocab: int
    nodes: int
    levels: int
    width: int
    pool: int
    forest: int
    max_rows: int
    threads: int = 512

    @property
    def constants(self) -> dict[str, int | float]:
        own = {"parts": parts_of(self.draft_vocab), "top": self.width, "stride": self.max_rows}
        return {**super().constants, **above(self.levels, self.width), **own}


class TreeSettle(Kernel):
    """Choice of the path of each slot's tree that the target agrees with: the longest whose tokens are its own choices,
    which are cleared again. Moves what is kept for its nodes to where a chain has it: keys and values in all layers,
    captured features in the first rows. The draft's cache needs no move: its extension computes those rows anew.

    A mask that is not the tree's sets Fault.MASK_INTEGRITY. `path` becomes the accepted nodes, root first; `readers`
    are zero before and after.

    `blocks`: of the cache in all; `width`: of a row of features. `max_rows`, `levels`: of the largest tree of the
    engine, of which this one's rows are the first.
    """

    heads: Heads
    layers: int
    blocks: int
    width: int
    rows: int
    levels: int
    max_rows: int

    def __post_init__(self) -> None:
        super().__post_init__()
        numbers = 16 // self.heads.cached.itemsize  # positions of 16 bytes of values
        self.shared_bytes = self.heads.row_bytes * numbers * ((self.rows + 2 * numbers - 2) // numbers)

    @property
    def constants(self) -> dict[str, int | float]:
        return {**super().constants, "threads": self.heads.head_dim}
