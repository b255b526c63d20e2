"""A plain weight, bfloat16: the configurations that are worth trying for it, and how its products are searched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Final

from specgate.backends.eagle3.cupy.device import multiprocessor_count, multiprocessors, shared_memory_limit
from specgate.backends.eagle3.cupy.kernels.matmul.gemm_config import (
    K_CHUNKS,
    ROW_TILE,
    SHALLOW,
    STAGE_BYTES,
    STAGES,
    TILES,
    WARPS,
    GemmConfig,
    most_chunks,
    turns,
)
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import Epilogue, MatmulRows
from specgate.backends.eagle3.cupy.tuned.gemms import EPILOGUES, parts
from specgate.backends.eagle3.cupy.tuned.lookup import KERNEL
from specgate.backends.eagle3.cupy.tuning.product import MOST, Product
from specgate.backends.eagle3.cupy.tuning.weight import Launch, Weight, launch_of
from specgate.backends.eagle3.nouns.gemms import GemmShape, Key

DEEP: Final = 96 * 1024
"""Bytes of a ring from which on a single block keeps an SM's share of the memory's bandwidth busy."""


def candidates(n_out: int, k_in: int) -> tuple[GemmConfig, ...]:
    """Return the configurations worth trying for a weight [n_out, k_in]: no warp is without work, and two stages fit.

    Each is tried in one pass. Where a block can keep x in registers and an SM busy alone, it is also tried in as many
    passes as leave no more blocks than SMs.
    """
    most = shared_memory_limit() // (2 * STAGE_BYTES)
    possible = [
        config
        for config in (GemmConfig(*fields) for fields in product(WARPS, K_CHUNKS, STAGES, (1, 2)))
        if config.warps * config.k_chunks <= most_chunks(k_in) and config.warps * config.k_chunks * config.tiles <= most
    ]
    shallow = [config for config in possible if config.stages <= SHALLOW]
    if (gpu := multiprocessors()) is not None:
        several = (in_passes(config, n_out, gpu.count) for config in possible)
        shallow += (config for config in several if fills_an_sm(config, n_out, k_in, 1, gpu.count))
    return tuple(config for config in shallow if useful(config, n_out, k_in))


def retilings(config: GemmConfig, n_out: int, k_in: int, processors: int) -> tuple[GemmConfig, ...]:
    """The same arithmetic as `config`, with the work moved in every way that is worth trying.

    In one pass, or in as many passes as leave a GPU of `processors` SMs no more blocks than three, two or one for each
    SM.
    """
    configs = dict[GemmConfig, None]()
    for tiles, stages, delay_dependents in product(TILES, STAGES, (0, 1)):
        once = GemmConfig(*config.split, stages, tiles, 1, delay_dependents)
        for moved in (once, *(in_passes(once, n_out, blocks * processors) for blocks in (3, 2, 1))):
            if useful(moved, n_out, k_in) and moved.ring_bytes <= moved.ring_limit(shared_memory_limit()):
                configs[moved] = None
    return tuple(configs)


def useful(config: GemmConfig, n_out: int, k_in: int) -> bool:
    """Return whether no stage is without work, and no block takes many features where these are few."""
    all_turns = turns(k_in, *config.split) * config.passes
    return min(2, all_turns) <= config.stages <= all_turns and 16 * config.tiles <= n_out // 64 + 16


def in_passes(config: GemmConfig, n_out: int, blocks: int) -> GemmConfig:
    """The same, in so many passes that there are no more than `blocks` blocks."""
    return replace(config, passes=-(-n_out // (16 * config.tiles * blocks)))


def fills_an_sm(config: GemmConfig, n_out: int, k_in: int, row_tiles: int, processors: int) -> bool:
    """Return whether each of `processors` SMs has one block, which keeps x in registers and has enough weights on their
    way to keep the SM busy alone.
    """
    enough = DEEP <= config.ring_bytes <= config.ring_limit(shared_memory_limit())
    several = config.passes > 1 and config == in_passes(config, n_out, processors)
    return enough and several and config.x_in_registers(n_out, k_in, row_tiles)


@dataclass(frozen=True, slots=True)
class GemmWeight(Weight[GemmConfig]):
    """`rows`: the most that a step has, as far as is known."""

    rows: int = 0

    @property
    def key(self) -> Key:
        return self.n, self.k

    @property
    def shape(self) -> GemmShape:
        """That of its product of most rows."""
        return GemmShape(self.tags[0], self.n, self.k, max(1, self.rows))

    @property
    def size(self) -> int:
        return 2 * self.n * self.k

    @property
    def kernel(self) -> str:
        return KERNEL

    @property
    def default(self) -> GemmConfig:
        return GemmConfig()

    @property
    def epilogues(self) -> tuple[Epilogue, ...]:
        return tuple(sorted({EPILOGUES[tag] for tag in self.tags}))

    def candidates(self) -> Sequence[GemmConfig]:
        return candidates(self.n, self.k)

    def launcher(self, epilogue: Epilogue, config: GemmConfig) -> MatmulRows:
        return MatmulRows(self.n // parts(epilogue), self.k, epilogue, MOST, config)

    def launches(self, config: GemmConfig) -> tuple[Launch, ...]:
        return tuple(launch_of(self.launcher(epilogue, config)) for epilogue in self.epilogues)

    def products(self, copies: int, rows: int = MOST) -> Sequence[Product]:
        return [Product.random(self.n, self.k, epilogue, copies, rows=rows) for epilogue in self.epilogues]

    def at(self, config: GemmConfig, rows: int) -> GemmConfig:
        return config.at(rows)

    def moved(self, config: GemmConfig, rows: int) -> Sequence[GemmConfig]:
        """Tiles and stages, in one pass or as a block that keeps x in registers."""
        row_tiles, processors = -(-rows // ROW_TILE), multiprocessor_count()
        return [
            moved
            for moved in retilings(config, self.n, self.k, processors)
            if not moved.delay_dependents
            and (moved.passes == 1 or fills_an_sm(moved, self.n, self.k, row_tiles, processors))
        ]

    def near(self, config: GemmConfig, best: GemmConfig) -> Sequence[GemmConfig]:
        """Passes, and whether the next kernel is delayed."""
        every = retilings(config, self.n, self.k, multiprocessor_count())
        return [moved for moved in every if (moved.tiles, moved.stages) == (best.tiles, best.stages)]

    def __str__(self) -> str:
        return f"{self.tags[0]} {self.n} x {self.k}"
