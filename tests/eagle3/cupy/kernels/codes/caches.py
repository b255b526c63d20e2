"""A random cache of codes, attention over it, and what the reference engine's planes say that it holds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.attention.attention import Attention, LayerPages, Workspace
from specgate.backends.eagle3.cupy.kernels.attention.fmha_config import FmhaConfig
from specgate.backends.eagle3.cupy.kernels.heads import BLOCK, OUTER_BYTES, SCALE_POSITIONS, Heads
from specgate.backends.eagle3.cupy.memory.coded_pages import key_page, scale_page, value_page
from specgate.backends.eagle3.lib.kv.modes import KvMode
from specgate.backends.eagle3.lib.rope import cos_sin_table
from specgate.backends.eagle3.reference.kv_planes import Fp8Plane, Nvfp4Plane, Quantised, allocate
from specgate.checkpoints.geometry import RopeSpec
from tests.eagle3.cupy import oracles
from tests.eagle3.cupy.kernels.device import counted, normal, poisoned, rotated, rows_of

CODES: tuple[KvMode, ...] = ("fp8", "nvfp4")
POSITIONS = 400
CONFIG = FmhaConfig(128, 2, 3)


class Attending(ABC):
    """Attention over the pages of a cache, and beside it over what a subclass says that they should hold."""

    heads: Heads
    device: str
    k_pages: Tensor
    v_pages: Tensor
    scales: Tensor | None = None
    block_table: Tensor
    rope: tuple[Tensor, Tensor]
    config: FmhaConfig | None = None

    @abstractmethod
    def held(self) -> tuple[Tensor, Tensor]:
        """Keys and values [S, G, P, D] as they should be."""

    def qkv(self, rows: int, seed: int = 0, scale: float = 1.0) -> Tensor:
        return normal(rows, self.heads.qkv_width, dtype=torch.float32, seed=seed, scale=scale, device=self.device)

    def attend(
        self,
        qkv: Tensor,
        positions: Sequence[int],
        rows: int,
        window: int | None = None,
        *,
        active: Sequence[int] | None = None,
        counts: Sequence[int] | None = None,
        config: FmhaConfig | None = None,
        statistics: Tensor | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Row t of slot s stands at positions[s] + t; with `counts`, the last of counts[s] rows stands at positions[s],
        and it alone asks. What is not written stays poisoned.
        """
        query_rows, slots = 1 if counts else rows, len(positions)
        kernel = Attention(
            *(self.heads, query_rows, window),
            appended=rows,
            config=config or self.config,
            statistics=statistics is not None,
            sinks=sinks is not None,
        )
        shapes = kernel.partial_shapes(slots)
        out = poisoned(slots * query_rows, self.heads.width, device=self.device)
        kernel(
            *(out, qkv, rows_of(range(slots) if active is None else active, query_rows, slots, self.device)),
            Workspace(*(poisoned(*shape, dtype=torch.float32, device=self.device) for shape in shapes)),
            *(LayerPages(self.k_pages, self.v_pages, self.scales), self.rope),
            block_table=self.block_table,
            length=counted([p - 3 for p in positions], self.device),
            offset=3,
            counts=counted(counts, self.device) if counts else None,
            statistics=statistics,
            sinks=sinks,
        )
        return out

    def oracle(
        self, queries: Tensor, positions: Sequence[int], window: int | None = None, sinks: Tensor | None = None
    ) -> Tensor:
        keys, values = self.held()
        return torch.stack(
            [
                oracles.attention(query, keys[s], values[s], p + t, window, sinks).flatten()
                for s, p in enumerate(positions)
                for t, query in enumerate(queries[s])
            ]
        )


class Cache(Attending):
    """A random cache of codes of `slots` slots. `keys`, `values`: what it should hold."""

    scales: Tensor
    config = CONFIG

    def __init__(self, heads: Heads, slots: int, device: str, *, spread: float = 1.0, seed: int = 0) -> None:
        """`spread`: by how much values differ in size from position to position."""
        self.heads, self.slots, self.device = heads, slots, device
        g, d, length = heads.kv_heads, heads.head_dim, heads.max_blocks * BLOCK
        sizes = spread ** torch.linspace(-1, 1, length)[:, None, None]
        self.keys, self.values = (plane(slots, heads, device) for _ in range(2))
        for s, (entry, scale) in enumerate(((self.keys, 1.0), (self.values, sizes))):
            rows = normal(slots, length, g, d, dtype=torch.float32, seed=seed + s, device=device)
            entry.write(torch.arange(length, device=device).expand(slots, -1), rows * torch.as_tensor(scale).to(device))
        order = torch.randperm(slots * heads.max_blocks, generator=torch.Generator().manual_seed(seed)).to(device)
        self.block_table = order.view(slots, -1).int()
        made = self.should_hold()
        self.k_pages, self.v_pages, self.scales = (pages.new_empty(pages.shape) for pages in made)
        for pages, wanted in zip((self.k_pages, self.v_pages, self.scales), made, strict=True):
            pages[order] = wanted
        self.rope = cos_sin_table(RopeSpec("default", 10000.0, d), heads.positions, device)

    def append(self, qkv: Tensor, positions: Sequence[int], rows: int, counts: Sequence[int] | None = None) -> Tensor:
        """The rows of every slot into what the cache should hold; their rotated queries, float32 [S, rows, N, D]."""
        n, g, d = self.heads.heads, self.heads.kv_heads, self.heads.head_dim
        queries = []
        for s, position in enumerate(positions):
            count = counts[s] if counts else rows
            first = position - count + 1 if counts else position
            given = [qkv[s * rows + t].view(-1, d) for t in range(count)]
            turned = [rotated(heads[: n + g], self.rope, first + t) for t, heads in enumerate(given)]
            at = torch.arange(first, first + count, device=self.device)[None]
            self.keys.slots(s, s + 1).write(at, torch.stack([heads[n:] for heads in turned])[None])
            self.values.slots(s, s + 1).write(at, torch.stack([heads[n + g :] for heads in given])[None])
            queries.append(torch.stack([heads[:n] for heads in (turned[-1:] if counts else turned)]))
        return torch.stack(queries)

    def held(self) -> tuple[Tensor, Tensor]:
        keys, values = (rows.read(0, self.heads.max_blocks * BLOCK, torch.float32) for rows in (self.keys, self.values))
        return keys, values

    def should_hold(self) -> list[Tensor]:
        """Pages and scales as `keys` and `values` say, slot by slot and block by block."""
        return [of.flatten(0, 1) for of in as_pages(self.keys, self.values)]

    def holds_what_it_should(self) -> bool:
        """Codes and scales, bit for bit, of every position of every slot."""
        table = self.block_table.flatten().long()
        planes = [pages[table] for pages in (self.k_pages, self.v_pages, self.scales)]
        wanted = self.should_hold()
        if self.heads.kv == "nvfp4":  # outer scales are those of a slot's first block alone
            behind = torch.arange(len(table), device=self.device) % self.heads.max_blocks > 0
            for scales in (planes[2], wanted[2]):
                scales[behind, :, -OUTER_BYTES:] = 0
        return all(torch.equal(mine, theirs) for mine, theirs in zip(planes, wanted, strict=True))


def plane(slots: int, heads: Heads, device: str) -> Fp8Plane | Nvfp4Plane:
    shape = (slots, heads.kv_heads, heads.max_blocks * BLOCK, heads.head_dim)
    made = allocate(heads.kv, shape, torch.float32, device, "")
    assert isinstance(made, Fp8Plane | Nvfp4Plane)
    return made


def as_pages(keys: Quantised, values: Quantised) -> tuple[Tensor, Tensor, Tensor]:
    """Pages and scales [slots, blocks, G, …] that hold what the two planes hold."""

    def by_block(of_positions: Tensor, positions: int) -> Tensor:
        return of_positions.unflatten(2, (-1, positions)).transpose(1, 2)  # type: ignore[no-untyped-call,no-any-return]

    if isinstance(keys, Fp8Plane) and isinstance(values, Fp8Plane):
        codes = [by_block(rows.codes, BLOCK) for rows in (keys, values)]
        scales = [by_block(rows.scales, BLOCK // SCALE_POSITIONS) for rows in (keys, values)]
        return codes[0], codes[1].transpose(-1, -2), torch.stack(scales, dim=-1)
    assert isinstance(keys, Nvfp4Plane) and isinstance(values, Nvfp4Plane)
    codes = [
        by_block(torch.stack((rows.codes & 15, rows.codes >> 4), dim=-1).flatten(-2), BLOCK) for rows in (keys, values)
    ]
    blocks = [by_block(rows.blocks, BLOCK) for rows in (keys, values)]
    outer = torch.stack((keys.scale, values.scale), dim=-1)[:, None].expand(-1, codes[0].shape[1], -1, -1)
    return key_page(codes[0]), value_page(codes[1]), scale_page(blocks[0], blocks[1], outer)
