"""Launches `matmul_rows.cu`, `matmul_many.cu` for more rows, and `matmul_wgmma.cu`; with maxima `maxima_….cu`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Final, TypedDict, Unpack

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.device import Multiprocessors, multiprocessors, shared_memory_limit
from specgate.backends.eagle3.cupy.kernels.arrays import Arrays
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


EPILOGUES_OF: Final[Mapping[str, tuple[Epilogue, ...]]] = {
    "feeds_norm": (Epilogue.RESIDUAL,),
    "chooses": (Epilogue.PLAIN,),
    "maxima": (Epilogue.PLAIN,),
    "biased": (Epilogue.PLAIN, Epilogue.RESIDUAL),
}
"""Switch → the epilogues that have it."""


def check_switches(epilogue: Epilogue, switches: Switches) -> None:
    """Raise ValueError for switches that no kernel has."""
    for switch, epilogues in EPILOGUES_OF.items():
        if switches.get(switch) and epilogue not in epilogues:
            raise ValueError(f"{epilogue.name} with {switch}: only {' and '.join(e.name for e in epilogues)} has that")
    if switches.get("maxima") and switches.get("chooses"):
        raise ValueError("only a product that chooses nothing leaves maxima")


def maxima_of(columns: int) -> int:
    """Words per row of the maxima of every eight of so many columns: see `maxima.cuh`."""
    return -(-columns // 32) * 4


@dataclass(frozen=True, slots=True)
class PreNormRows(Arrays):
    """The input of an RMSNorm, which the product that follows completes by a division.

    `normed`: x · weight, before the division by the root mean square of x. `squares`: sums of x² over NORM_GROUP
    elements each, of which that root is made.
    """

    normed: Annotated[Tensor, "bfloat16 [R, H]"]
    squares: Annotated[Tensor, "float32 [R, H / 8]"]


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
        many: ManyConfig | None = None,
        **switches: Unpack[Switches],
    ) -> None:
        """`rows`: the most that this launcher will see; at most MAX_ROWS. `config`: with a `WgmmaConfig`, the products
        are those of a warpgroup. `many`: how `matmul_many.cu` divides the work, where the usual way shall not hold.
        Raises ValueError for what no kernel, or not this GPU, does.
        """
        if not 0 < rows <= MAX_ROWS:
            raise ValueError(f"rows = {rows}: 1 to {MAX_ROWS} rows are needed")
        check_switches(epilogue, switches)
        self.n_out, self.k_in, self.epilogue, self.rows, self.switches = n_out, k_in, epilogue, rows, switches
        self.scaled, self.feeds_norm, self.chooses, self.biased, self.maxima = (
            bool(switches.get(name)) for name in ("scaled", "feeds_norm", "chooses", "biased", "maxima")
        )
        self.wgmma, gpu = config if isinstance(config, WgmmaConfig) else None, multiprocessors()
        # The split of k: none counts beside `wgmma`.
        of_k = config if isinstance(config, GemmConfig) else GemmConfig()
        self.config = of_k if self.wgmma else of_k.fitted(k_in, shared_memory_limit())
        by_rule = None if self.wgmma else ManyConfig.of(self.config, self.weight, rows, shared_memory_limit(), gpu)
        self.many = many or by_rule
        if self.wgmma is not None:
            kind, divided = "wgmma", self.divided_by_groups(self.wgmma, gpu)
        elif self.many is not None:
            kind, divided = "many", self.divided_among_many(self.many)
        else:
            kind, divided = "rows", self.divided_by_rows(gpu)
        self.name = f"matmul_{kind}"
        """Of the kernel that is launched."""
        super().__init__(
            f"maxima_{kind}" if self.maxima else self.name,
            n_out=n_out,
            k_in=k_in,
            epilogue=epilogue.value,
            pre_norm_x=self.scaled,
            feeds_norm=self.feeds_norm,
            takes_argmax=self.chooses or self.maxima,
            has_bias=self.biased,
            **divided,
        )

    def divided_by_groups(self, config: WgmmaConfig, gpu: Multiprocessors | None) -> dict[str, int]:
        """Constants of `matmul_wgmma.cu`. Raises ValueError for a GPU, or a division, that it is not made for."""
        if reason := unable(gpu):
            raise ValueError(reason)
        if not config.possible(*self.weight):
            raise ValueError(f"{config}: not for a weight of {list(self.weight)}")
        groups, tiles = row_tiles_of(self.rows)
        self.grid, self.threads = config.grid(self.weight[0], groups), config.threads
        shared = config.shared_bytes(tiles)
        return {**config.constants, "row_tiles": tiles, "row_groups": groups, "shared_bytes": shared}

    def divided_among_many(self, many: ManyConfig) -> dict[str, int]:
        """Constants of `matmul_many.cu`."""
        self.grid, self.threads = many.grid(self.weight[0]), many.threads
        own, shared = self.config, many.shared_bytes(self.config)
        split = {"chains": own.warps, "chunks_per_turn": own.k_chunks, "delay_dependents": own.delay_dependents}
        return {**many.constants, **split, "shared_bytes": shared}

    def divided_by_rows(self, gpu: Multiprocessors | None) -> dict[str, int]:
        """Constants of `matmul_rows.cu`."""
        config, groups = self.config, -(-self.rows // ROW_GROUP)
        tiles = -(-self.rows // (groups * ROW_TILE))
        self.grid, self.threads = (self.blocks,) if groups == 1 else (groups, self.blocks), config.warps * 32
        shared = config.shared_bytes(self.k_in, tiles)
        if gpu is not None and not is_small(*self.weight):
            shared = limit_occupancy(shared, self.blocks * groups, gpu.count, gpu.shared_memory)
        in_registers = config.x_in_registers(*self.weight, tiles)
        of_rows = {"row_tiles": tiles, "row_groups": groups, "x_in_registers": int(in_registers)}
        return {**config.constants, **of_rows, "shared_bytes": shared}

    @property
    def blocks(self) -> int:
        """Blocks that divide the weight among them, for one group of rows, by `matmul_rows.cu`."""
        features = self.config.tiles * (8 if self.epilogue is Epilogue.SWIGLU else 16)
        groups = -(-self.n_out // features)
        return -(-groups // self.config.passes)

    @property
    def weight(self) -> tuple[int, int]:
        """Rows and columns of the weight."""
        return (1 + (self.epilogue is Epilogue.SWIGLU)) * self.n_out, self.k_in

    def retiled(self, config: AnyConfig) -> MatmulRows:
        """The same product with another configuration."""
        return MatmulRows(self.n_out, self.k_in, self.epilogue, self.rows, config, **self.switches)

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
