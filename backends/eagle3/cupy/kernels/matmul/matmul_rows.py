"""Launches `matmul_rows.cu`, `matmul_many.cu` for more rows, and `matmul_wgmma.cu`; with maxima `maxima_….cu`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypedDict

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.device import multiprocessors, shared_memory_limit
from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.matmul.gemm_config import (
    MAX_ROWS,
    ROW_GROUP,
    ROW_TILE,
    GemmConfig,
    is_small,
    limit_occupancy,
)
from specgate.backends.eagle3.cupy.kernels.matmul.many_config import ManyConfig
from specgate.backends.eagle3.cupy.kernels.matmul.wgmma_config import WgmmaConfig, row_tiles_of, unable
from specgate.backends.eagle3.cupy.kernels.operands import expect
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows

AnyConfig = GemmConfig | WgmmaConfig
NORM_GROUP: Final = 8
"""Elements that one partial sum of squares is taken over."""


class Epilogue(IntEnum):
    """Use of the sums: see `matmul_rows.cu`."""

    PLAIN = 0
    RESIDUAL = 1
    SWIGLU = 2


class Switches(TypedDict, total=False):
    """Options of a product beside its epilogue: see `MatmulRows`."""

    scaled: bool
    feeds_norm: bool
    chooses: bool
    biased: bool
    maxima: bool


def maxima_of(columns: int) -> int:
    """Words per row of the maxima of every eight of so many columns: see `maxima.cuh`."""
    return -(-columns // 32) * 4


@dataclass(frozen=True, slots=True)
class PreNormRows:
    """The input of an RMSNorm, which the product that follows completes by a division.

    `normed` bfloat16 [R, H]: x · weight, before the division by the root mean square of x. `squares` float32
    [R, H / 8]: sums of x² over eight elements each, of which that root is made.
    """

    normed: Tensor
    squares: Tensor


class MatmulRows(Kernel):
    """out = x · weightᵀ for few rows: bfloat16 x [R, K] and weight [N, K] (SWIGLU: [2N, K]).

    PLAIN writes float32 [R, N], RESIDUAL adds to it, SWIGLU writes bfloat16 [R, N]. With `scaled`, x is `PreNormRows`.
    With `feeds_norm`, a RESIDUAL also leaves the `PreNormRows` of the next norm. With `chooses`, a PLAIN also leaves
    the greedy choice of each row. With `biased`, a PLAIN or RESIDUAL adds a bias. With `maxima`, a PLAIN also leaves
    the largest of every eight columns.
    """

    def __init__(
        self,
        n_out: int,
        k_in: int,
        epilogue: Epilogue,
        rows: int,
        config: AnyConfig | None = None,
        *,
        scaled: bool = False,
        feeds_norm: bool = False,
        chooses: bool = False,
        biased: bool = False,
        maxima: bool = False,
        many: ManyConfig | None = None,
    ) -> None:
        """`rows`: the most that this launcher will see; at most MAX_ROWS. `config`: with a `WgmmaConfig`, the products
        are those of a warpgroup. `many`: how `matmul_many.cu` divides the work, where the usual way shall not hold.
        Raises ValueError for what no kernel, or not this GPU, does.
        """
        if not 0 < rows <= MAX_ROWS:
            raise ValueError(f"rows = {rows}: 1 to {MAX_ROWS} rows are needed")
        if feeds_norm and epilogue is not Epilogue.RESIDUAL:
            raise ValueError(f"{epilogue.name} feeds no norm: only RESIDUAL does")
        if chooses and epilogue is not Epilogue.PLAIN:
            raise ValueError(f"{epilogue.name} chooses nothing: only PLAIN does")
        if maxima and (epilogue is not Epilogue.PLAIN or chooses):
            raise ValueError(f"{epilogue.name}, chooses = {chooses}: only a PLAIN that chooses nothing leaves maxima")
        if biased and epilogue is Epilogue.SWIGLU:
            raise ValueError(f"{epilogue.name} adds no bias: only PLAIN and RESIDUAL do")
        self.n_out, self.k_in, self.epilogue, self.rows = n_out, k_in, epilogue, rows
        self.scaled, self.feeds_norm, self.chooses, self.biased = scaled, feeds_norm, chooses, biased
        self.maxima = maxima
        self.wgmma, gpu = config if isinstance(config, WgmmaConfig) else None, multiprocessors()
        # The split of k: none counts beside `wgmma`.
        of_k = config if isinstance(config, GemmConfig) else GemmConfig()
        self.config = of_k if self.wgmma else of_k.fitted(k_in, shared_memory_limit())
        by_rule = None if self.wgmma else ManyConfig.of(self.config, self.weight, rows, shared_memory_limit(), gpu)
        self.many = many or by_rule
        common = {
            "n_out": n_out,
            "k_in": k_in,
            "epilogue": epilogue.value,
            "pre_norm_x": int(scaled),
            "feeds_norm": int(feeds_norm),
            "takes_argmax": int(chooses or maxima),
            "has_bias": int(biased),
            "delay_dependents": (self.wgmma or self.config).delay_dependents,
        }
        if self.wgmma is not None:
            if reason := unable(gpu):
                raise ValueError(reason)
            if not self.wgmma.possible(*self.weight):
                raise ValueError(f"{self.wgmma}: not for a weight of {list(self.weight)}")
            self.row_groups, tiles = row_tiles_of(rows)
            super().__init__(
                "maxima_wgmma" if maxima else "matmul_wgmma",
                **common,
                row_tiles=tiles,
                row_groups=self.row_groups,
                boxes=self.wgmma.boxes,
                stages=self.wgmma.stages,
                cluster=self.wgmma.cluster,
                chain=self.wgmma.chain,
                shared_bytes=self.wgmma.shared_bytes(tiles),
            )
            return
        common["chunks_per_turn"] = self.config.k_chunks
        if self.many is not None:
            self.row_groups = self.many.row_groups
            super().__init__(
                "maxima_many" if maxima else "matmul_many",
                **common,
                chains=self.config.warps,
                row_tiles=self.many.row_tiles,
                row_groups=self.many.row_groups,
                cluster=self.many.cluster,
                stages=self.many.stages,
                weight_tiles=self.many.tiles,
                warp_tiles=self.many.warp_tiles,
                shared_bytes=self.many.shared_bytes(self.config),
            )
            return
        self.row_groups = -(-rows // ROW_GROUP)
        tiles = -(-rows // (self.row_groups * ROW_TILE))
        shared = self.config.shared_bytes(k_in, tiles)
        if gpu is not None and not is_small(*self.weight):
            shared = limit_occupancy(shared, self.blocks * self.row_groups, gpu.count, gpu.shared_memory)
        super().__init__(
            "maxima_rows" if maxima else "matmul_rows",
            **common,
            row_tiles=tiles,
            row_groups=self.row_groups,
            warps=self.config.warps,
            stages=self.config.stages,
            weight_tiles=self.config.tiles,
            passes=self.config.passes,
            x_in_registers=int(self.config.x_in_registers(*self.weight, tiles)),
            shared_bytes=shared,
        )

    @property
    def name(self) -> str:
        """Of the kernel that is launched."""
        return "matmul_wgmma" if self.wgmma else "matmul_rows" if self.many is None else "matmul_many"

    @property
    def grid(self) -> tuple[int, ...]:
        """Blocks of a launch."""
        if self.wgmma is not None:
            return self.wgmma.grid(self.weight[0], self.row_groups)
        if self.many is not None:
            return self.many.grid(self.weight[0])
        return (self.blocks,) if self.row_groups == 1 else (self.row_groups, self.blocks)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        if self.wgmma is not None:
            return self.wgmma.threads
        return self.config.warps * 32 if self.many is None else self.many.threads

    @property
    def blocks(self) -> int:
        """Blocks that divide the weight among them, for one group of rows."""
        features = self.config.tiles * (8 if self.epilogue is Epilogue.SWIGLU else 16)
        groups = -(-self.n_out // features)
        return -(-groups // self.config.passes)

    @property
    def weight(self) -> tuple[int, int]:
        """Rows and columns of the weight."""
        return (1 + (self.epilogue is Epilogue.SWIGLU)) * self.n_out, self.k_in

    def retiled(self, config: AnyConfig) -> MatmulRows:
        """The same product with another configuration."""
        return MatmulRows(
            *(self.n_out, self.k_in, self.epilogue, self.rows, config),
            scaled=self.scaled,
            feeds_norm=self.feeds_norm,
            chooses=self.chooses,
            biased=self.biased,
            maxima=self.maxima,
        )

    def __call__(
        self,
        out: Tensor,
        x: Tensor | PreNormRows,
        weight: Tensor,
        rows: Rows,
        *,
        eps: float = 0.0,
        norm: tuple[PreNormRows, Tensor] | None = None,
        choices: Tensor | None = None,
        bias: Tensor | None = None,
        maxima: Tensor | None = None,
    ) -> None:
        """`norm`: where a launcher that `feeds_norm` leaves its rows, and that norm's weight, bfloat16 [N].

        `choices`: where a launcher that `chooses` leaves the column of each row's largest result, the lowest of equal
        ones: int64 [R], packed as in `argmax.cuh`. It must be zero before, since what is there stays unless it is
        beaten. NaN and infinity beat every number.

        `bias`: what a launcher that is `biased` adds, bfloat16 [N].

        `maxima`: where a launcher with `maxima` leaves the largest of every eight columns, int32 [R, maxima_of(N)], as
        bits that compare as unsigned numbers. Words behind the last part are left as they are.

        Raises ValueError for operands that this launcher was not made for.
        """
        if rows.most > self.rows:
            raise ValueError(f"{rows.most} rows for a launcher of {self.rows}")
        if maxima is not None:
            expect("maxima", maxima, (rows.most, maxima_of(self.n_out)), torch.int32)
        elif choices is not None:
            expect("choices", choices, (rows.most,), torch.int64)
        if (maxima is not None) != self.maxima:
            raise ValueError(f"{self.name}: made for maxima = {self.maxima}")
        swiglu = self.epilogue is Epilogue.SWIGLU
        expect("out", out, (rows.most, self.n_out), torch.bfloat16 if swiglu else torch.float32)
        left, norm_weight = norm or (None, None)
        self.launch(
            self.grid,
            rows,
            threads=self.threads,
            function=self.name,
            out=out,
            x=x.normed if isinstance(x, PreNormRows) else x,
            weight=weight,
            squares=x.squares if isinstance(x, PreNormRows) else None,
            normed=left.normed if left else None,
            normed_squares=left.squares if left else None,
            norm_weight=norm_weight,
            choices=choices if maxima is None else maxima.view(torch.int64),  # the field for what is compared
            eps=eps,
            bias=bias,
        )
