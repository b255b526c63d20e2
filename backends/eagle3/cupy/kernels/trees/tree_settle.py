"""Launches `tree_settle.cu`."""

from __future__ import annotations

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.heads import BLOCK, Heads
from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows, Slots


class TreeSettle(Kernel):
    """Choice of the path of each slot's tree that the target agrees with: the longest whose tokens are its own choices
    (int64 [R], cleared again). Moves what is kept for its nodes to where a chain has it: keys and values in all layers,
    captured features in the first rows. The draft's cache needs no move: its extension computes those rows anew.

    A mask that is not the tree's sets Fault.MASK_INTEGRITY.
    """

    def __init__(
        self, heads: Heads, layers: int, blocks: int, width: int, rows_per_slot: int, levels: int, max_rows: int
    ) -> None:
        """`blocks`: of the cache in all; `width`: of a row of features. `max_rows`, `levels`: of the largest tree of
        the engine, of which this one's rows are the first.
        """
        self.heads, self.layers, self.blocks, self.width = heads, layers, blocks, width
        self.rows_per_slot, self.levels, self.max_rows = rows_per_slot, levels, max_rows
        super().__init__(
            "tree_settle",
            kv_heads=heads.kv_heads,
            head_dim=heads.head_dim,
            block=BLOCK,
            max_blocks=heads.max_blocks,
            layers=layers,
            blocks=blocks,
            width=width,
            rows=rows_per_slot,
            levels=levels,
            max_rows=max_rows,
            threads=heads.head_dim,
            shared_bytes=heads.head_dim * 16 * ((rows_per_slot + 14) // 8),
        )

    def __call__(
        self,
        k_pages: Tensor,
        v_pages: Tensor,
        features: Tensor,
        path: Tensor,
        readers: Tensor,
        choices: Tensor,
        masks: Tensor,
        parents: Tensor,
        block_table: Tensor,
        slots: Slots,
        rows: Rows,
    ) -> None:
        """`path` int32 [S, levels + 1]: becomes the accepted nodes, root first. `readers` int32 [S], zero. `masks`
        int64 and `parents` int32 [S, T].
        """
        h = self.heads
        of_features = -(-self.width // (h.head_dim * 8))
        self.launch(
            (self.layers * h.kv_heads + of_features, rows.slots),
            slots,
            rows,
            k_pages=k_pages,
            v_pages=v_pages,
            features=features,
            path=path,
            readers=readers,
            choices=choices,
            masks=masks,
            parents=parents,
            block_table=block_table,
        )
