"""The weights of a mixture of experts in MXFP4: configurations that are worth trying, and how they are searched."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Final

from specgate.backends.eagle3.cupy.device import RESERVED_SHARED, multiprocessors, shared_memory_limit
from specgate.backends.eagle3.cupy.kernels.experts.expert_config import ROOMS, ROUTING_BYTES, WARPS, ExpertConfig
from specgate.backends.eagle3.cupy.kernels.experts.packing import NUMBERS, SCALES, TILE, slab_count
from specgate.backends.eagle3.cupy.tuned.lookup import KERNELS_OF_EXPERTS
from specgate.backends.eagle3.cupy.tuning.expert_product import ExpertProduct, launcher
from specgate.backends.eagle3.cupy.tuning.product import MOST
from specgate.backends.eagle3.cupy.tuning.weight import Launch, Weight, launch_of
from specgate.backends.eagle3.nouns.gemms import GemmShape, Key

REGISTERS: Final = 65536
"""Of an SM."""
NEEDED: Final = {1: 96, 2: 112, 3: 144}
"""Tiles of a block → the registers with which no thread has to spill, as NVRTC 13.0 allots them."""
FEW_SLABS: Final = 4
"""Slabs of a ring beyond which an odd number of them takes more registers than these."""
IN_FLIGHT: Final = 24 * 1024
"""Bytes of weight on their way to an SM below which memory is hardly kept busy."""
IDLE: Final = 1.1
"""How many times as many slabs as with the best number of warps the warps may have places for."""


def candidates(n: int, k: int) -> tuple[ExpertConfig, ...]:
    """Return the configurations worth trying for a matrix [n, k] of each expert: few places for slabs are empty, blocks
    fill an SM, and enough is on its way.
    """
    slabs = slab_count(k)
    places = {warps: warps * -(-slabs // warps) for warps in WARPS}
    splits = (warps for warps in WARPS if places[warps] <= IDLE * min(places.values()))
    return tuple(
        config
        for warps in splits
        for config in divisions(ExpertConfig(warps, k, 1), n)
        if config.blocks_per_sm == config.room > 1
    )


def retilings(config: ExpertConfig, n: int) -> tuple[ExpertConfig, ...]:
    """The same arithmetic as `config`, with the work moved in every way that is worth trying."""
    return tuple(divisions(config, n))


def divisions(config: ExpertConfig, n: int) -> Iterator[ExpertConfig]:
    """All with the warps of `config` that fit the GPU, a matrix of `n` rows, and the registers of a thread."""
    divisors = (ring for ring in range(1, config.each + 1) if config.each % ring == 0)
    rings = [ring for ring in divisors if ring <= FEW_SLABS or ring % 2 == 0]
    for ring, tiles, room, blocks in product(rings, NEEDED, ROOMS, ROOMS):
        moved = replace(config, ring=ring, tiles=tiles, room=room, blocks_per_sm=blocks)
        busy = in_flight(moved) >= IN_FLIGHT or ring == config.each
        if blocks <= room and busy and moved.possible(n // TILE) and fits(moved):
            yield moved


def in_flight(config: ExpertConfig) -> int:
    """Bytes of weight that the blocks of an SM have on their way."""
    return config.blocks_per_sm * config.warps * config.ring * config.tiles * (NUMBERS + SCALES)


def fits(config: ExpertConfig) -> bool:
    """Return whether an SM has shared memory and registers for `room` blocks."""
    block = config.shared_bytes + ROUTING_BYTES
    gpu = multiprocessors()
    if block > shared_memory_limit() or (gpu and config.room * (block + RESERVED_SHARED) > gpu.shared_memory):
        return False
    return REGISTERS // (32 * config.warps * config.room) >= NEEDED[config.tiles]


@dataclass(frozen=True, slots=True)
class ExpertWeight(Weight[ExpertConfig]):
    """`experts` matrices, of which a row has `per_token`."""

    experts: int
    per_token: int

    @property
    def shape(self) -> GemmShape:
        return GemmShape(self.tags[0], self.n, self.k, MOST, self.experts, self.per_token)

    @property
    def key(self) -> Key:
        return self.shape.key

    @property
    def mixture(self) -> tuple[int, int]:
        return self.experts, self.per_token

    @property
    def size(self) -> int:
        return self.per_token * self.n // TILE * slab_count(self.k) * (NUMBERS + SCALES)

    @property
    def kernel(self) -> str:
        return KERNELS_OF_EXPERTS[self.tags[0]]

    @property
    def default(self) -> ExpertConfig:
        return launcher(self.shape).config

    def candidates(self) -> Sequence[ExpertConfig]:
        return candidates(self.n, self.k)

    def launches(self, config: ExpertConfig) -> tuple[Launch, ...]:
        return (launch_of(launcher(self.shape, config)),)

    def products(self, copies: int, rows: int = MOST) -> Sequence[ExpertProduct]:
        return [ExpertProduct.random(self.shape, copies, rows=rows)]

    def at(self, config: ExpertConfig, rows: int) -> ExpertConfig:
        return config

    def moved(self, config: ExpertConfig, rows: int) -> Sequence[ExpertConfig]:
        """Tiles and ring, with as many blocks as an SM has room for."""
        every = retilings(config, self.n)
        return [moved for moved in every if moved.blocks_per_sm == moved.room]

    def near(self, config: ExpertConfig, best: ExpertConfig) -> Sequence[ExpertConfig]:
        """Blocks of an SM, and room for those of the next kernel."""
        return [moved for moved in retilings(config, self.n) if (moved.tiles, moved.ring) == (best.tiles, best.ring)]

    def __str__(self) -> str:
        return str(self.shape)
