"""Division of the work of `attention.cu`, and the default one of an engine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Final

from specgate.backends.eagle3.cupy.device import RESERVED_SHARED, Multiprocessors, multiprocessors, shared_memory_limit
from specgate.backends.eagle3.cupy.kernels.heads import BLOCK, Heads
from specgate.backends.eagle3.lib.kv.modes import KvMode

LONGEST_TILE = 32 * BLOCK
"""Positions. Each of a warp's 32 lanes holds one entry of the block table."""
SHORTEST_TILE = 256
"""Positions. Fewer are not worth a block of threads."""
STATIC_SHARED_BYTES = 8 * 1024
"""Most bytes of shared memory that a block declares beside its ring."""
SM_REGISTERS = 65536
WARPS: Final = (8, 4, 2)
REGISTERS: Final = {64: 128, 128: 168}
"""Size of a head → most registers that a thread is counted on to have."""
OUTPUT_BYTES = 16 * 4
"""Of a warp, for each element of a head: 16 query rows in float32."""


@dataclass(frozen=True, slots=True)
class FmhaConfig:
    """Tiling of attention. A block of `warps` warps attends over a tile of `kv_tile` cached positions.

    Tiles lie at fixed absolute positions, so that no row's sum depends on other rows. Both numbers are part of the
    arithmetic: they decide the order in which a row is summed. An engine therefore uses one configuration throughout.

    `stages` only moves work. It is the number of pieces (32 keys, or the values of 32 keys; of codes, 64) that a warp
    holds in its ring in shared memory. Raises ValueError for values that the kernel does not have.
    """

    kv_tile: int = 512
    warps: int = 4
    stages: int = 3

    def __post_init__(self) -> None:
        if not BLOCK <= self.kv_tile <= LONGEST_TILE or self.kv_tile % BLOCK:
            raise ValueError(f"{self}: kv_tile must be a multiple of {BLOCK} up to {LONGEST_TILE}")
        if self.warps not in WARPS:
            raise ValueError(f"{self}: warps must be 2, 4 or 8")
        if not 1 <= self.stages <= 8:
            raise ValueError(f"{self}: stages must be 1 to 8")

    def ring_bytes(self, head_dim: int, *, kv: KvMode = "bf16") -> int:
        """Bytes of the rings of all warps of a block, or of their outputs, which come later, where these are more.
        `kv`: the format of the cache.
        """
        of_warp = self.stages * piece_bytes(head_dim, kv) + beside_ring(head_dim, kv)
        return self.warps * max(of_warp, OUTPUT_BYTES * head_dim)

    def fitted(self, head_dim: int, shared_memory: int, *, kv: KvMode = "bf16") -> FmhaConfig:
        """The same arithmetic within `shared_memory` bytes per block."""
        most = (shared_memory // self.warps - beside_ring(head_dim, kv)) // piece_bytes(head_dim, kv)
        return replace(self, stages=min(self.stages, max(1, most)))

    def blocks_per_sm(self, head_dim: int, shared_memory: int, *, kv: KvMode = "bf16") -> int:
        """Return how many blocks an SM with `shared_memory` bytes holds at once. Registers have to fit, too."""
        by_memory = shared_memory // (self.ring_bytes(head_dim, kv=kv) + STATIC_SHARED_BYTES + RESERVED_SHARED)
        return max(1, min(by_memory, SM_REGISTERS // (32 * self.warps * REGISTERS[head_dim])))


CANDIDATES: Final = (
    *(FmhaConfig(tile) for tile in (256, 384, 512, 640, 704, 768, 1024, 1152, 1536, 2048)),
    *(FmhaConfig(512, 4, 6), FmhaConfig(384, 4, 4), FmhaConfig(1088, 4, 4), FmhaConfig(768, 8, 3)),
    *(FmhaConfig(896, 8, 3), FmhaConfig(832, 8, 4), FmhaConfig(832, 8, 5), FmhaConfig(1024, 8, 4)),
)
"""Configurations worth trying. The tile decides how evenly blocks fill the GPU."""


def piece_bytes(head_dim: int, kv: KvMode = "bf16") -> int:
    """Bytes of a piece: 32 positions of one head in bfloat16, 64 in E4M3 or NVFP4; and of the scales that come with
    keys: a load of 16 bytes for each lane in E4M3, those of the whole cache block in NVFP4.
    """
    return {"bf16": 64 * head_dim, "fp8": 64 * head_dim + 32 * 16, "nvfp4": 32 * head_dim + 8 * head_dim}[kv]


def beside_ring(head_dim: int, kv: KvMode) -> int:
    """Bytes that a warp has beside its pieces: in NVFP4, scales of a key tile's values as float16, those of 16
    positions after each other, with 32 bytes between these.
    """
    return 4 * (2 * head_dim + 32) if kv == "nvfp4" else 0


@dataclass(frozen=True, slots=True)
class Regime:
    """The configuration for heads of `head_dim` and more, `slots` slots and more, `positions` positions and more,
    `kv_heads` key/value heads and more, where `kv` is None or the format of their cache.

    The tile of `config` is still to be fitted to whole waves of blocks. A wave takes `share` of the places that a GPU
    has for blocks.
    """

    head_dim: int
    slots: int
    positions: int
    config: FmhaConfig
    share: float = 1.0
    kv: KvMode | None = None
    kv_heads: int = 1

    def holds(self, heads: Heads, slots: int) -> bool:
        of_cache = heads.positions >= self.positions and heads.kv_heads >= self.kv_heads
        return heads.head_dim >= self.head_dim and slots >= self.slots and of_cache and self.kv in (None, heads.kv)


REGIMES: Final = (
    Regime(128, 4, 8192, FmhaConfig(kv_tile=1024)),
    # Arithmetic takes longer than reading: a third block on every SM, and fewer early copies in others' way.
    Regime(128, 1, 0, FmhaConfig(kv_tile=704, stages=2), kv="nvfp4"),
    Regime(128, 1, 0, FmhaConfig(kv_tile=1024)),
    Regime(0, 4, 8192, FmhaConfig(kv_tile=896, warps=8, stages=3)),
    # So many heads that blocks with a long ring, of which an SM holds one, would make several waves.
    Regime(0, 1, 16384, FmhaConfig(kv_tile=1024, warps=8, stages=3), share=0.96, kv="bf16", kv_heads=8),
    # Blocks of one slot leave some SMs to the products around attention.
    Regime(0, 1, 0, FmhaConfig(kv_tile=832, warps=8, stages=5), share=0.96),
)
"""The first that holds counts. They were measured on an H200 (backends/eagle3/docs/performance.md); see `within`."""
ENOUGH: Final = 34 * 1024
"""Bytes on their way to an SM that keep memory busy: by Little's law 4.55 TB/s over an H200's 132 SMs at a latency of
1 us. GPUs with less shared memory have less bandwidth per SM.
"""


def within(config: FmhaConfig, heads: Heads, gpu: Multiprocessors) -> FmhaConfig:
    """Return `config` where a block of `gpu` has the shared memory for it. Else the most warps, and then stages, of
    which an SM holds two blocks with two stages each and `ENOUGH` on their way; `config` if there are none.
    """
    if config.fitted(heads.head_dim, shared_memory_limit() - STATIC_SHARED_BYTES, kv=heads.kv) == config:
        return config
    smaller = (
        replace(config, warps=warps, stages=stages)
        for warps, stages in product(WARPS, range(config.stages, 1, -1))
        if warps <= config.warps
    )

    def holds_two(one: FmhaConfig) -> bool:
        blocks = one.blocks_per_sm(heads.head_dim, gpu.shared_memory, kv=heads.kv)
        return blocks >= 2 and blocks * one.ring_bytes(heads.head_dim, kv=heads.kv) >= ENOUGH

    return next(filter(holds_two, smaller), config)


def usual_config(heads: Heads, slots: int) -> FmhaConfig:
    """Return the default of an engine of `slots` slots with up to `heads.positions` positions each."""
    regime = next(regime for regime in REGIMES if regime.holds(heads, slots))
    gpu = multiprocessors()
    if gpu is None:
        return regime.config
    config = within(regime.config, heads, gpu)
    fitted = config.fitted(heads.head_dim, shared_memory_limit() - STATIC_SHARED_BYTES, kv=heads.kv)
    at_once = int(regime.share * gpu.count * fitted.blocks_per_sm(heads.head_dim, gpu.shared_memory, kv=heads.kv))
    tile = tile_of_whole_waves(config.kv_tile, heads.positions, slots * heads.kv_heads, at_once)
    return replace(config, kv_tile=tile)


def tile_of_whole_waves(tile: int, positions: int, sequences: int, at_once: int) -> int:
    """The tile to use for `sequences` cached sequences of `positions` positions on a GPU that runs `at_once` blocks.

    That is `tile` itself, where all its blocks run at once. Where there are more blocks, it is a tile near it that
    makes a whole number of such waves: the few blocks of another wave would take as long as a whole one.
    """
    if -(-positions // tile) * sequences <= at_once:
        return tile
    waves = max(1, round(positions * sequences / (tile * at_once)))
    chunks = waves * at_once // sequences
    if not chunks:
        return tile
    return min(max(-(-positions // (chunks * BLOCK)) * BLOCK, SHORTEST_TILE), LONGEST_TILE)
