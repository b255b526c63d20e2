"""Least work and traffic of a prefill, part by part, from the geometry alone.

An operation is a multiplication or an addition (FLOP). Only those of products and of attention are counted: all others
together are less than a hundredth. Bytes are those of every operand once, read or written, however often a kernel
touches it: a product that is done chunk by chunk reads its weights once per chunk, and here they count once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from specgate.backends.eagle3.cupy.bench.synthetic import Geometry
from specgate.backends.eagle3.cupy.kernels.heads import BLOCK
from specgate.backends.eagle3.nouns.kernel_bench import WHOLE
from specgate.checkpoints.geometry import DraftGeometry, TargetGeometry

BF16, FLOAT, LONG = 2, 4, 8


@dataclass(frozen=True, slots=True)
class Work:
    """One part of a prefill. `times`: how often a prompt needs it; `flops` and `size` (bytes) are of one time."""

    part: str
    shape: str
    times: int
    flops: int
    size: int


def works(geometry: Geometry, positions: int) -> tuple[Work, ...]:
    """The parts of the prefill of one prompt, in the order in which it first needs them; the draft's come last."""
    target = tuple(target_works(geometry.target, geometry.boundaries, positions))
    draft = tuple(draft_works(geometry.draft, positions - 1)) if geometry.draft and positions > 1 else ()
    return (*target, *draft)


def whole(parts: tuple[Work, ...], positions: int) -> Work:
    """All of it. What one part hands to the next is counted for both, as it does not stay on the chip."""
    return Work(
        WHOLE,
        f"{positions}",
        1,
        sum(part.times * part.flops for part in parts),
        sum(part.times * part.size for part in parts),
    )


def target_works(g: TargetGeometry, boundaries: tuple[int, ...], positions: int) -> Iterator[Work]:
    p, h, f, queries, width = positions, g.hidden, g.intermediate, g.heads * g.head_dim, width_of(g)
    # Of the last layer one row is enough, unless a draft reads the stream behind it.
    layers = g.layers if g.layers in boundaries else g.layers - 1
    yield Work("embed", f"{p}×{h}", 1, 0, p * (LONG + h * (BF16 + FLOAT + BF16)) + h * BF16)
    yield product("qkv", p, width, h, g.layers)
    yield heads("heads", g.heads, g.kv_heads, g.head_dim, p, g.layers)
    yield Work(
        "attention",
        f"{p}², {g.heads}:{g.kv_heads} of {g.head_dim}",
        layers,
        4 * queries * (p * (p + 1) // 2),
        p * (width + queries) * BF16,
    )
    yield product("o", p, h, queries, layers)
    yield Work("residual", f"{p}×{h}", 2 * layers, 0, p * h * (BF16 + FLOAT + FLOAT + BF16) + h * BF16)
    yield product("gate_up", p, 2 * f, h, layers)
    yield Work("gate", f"{p}×{f}", layers, 0, p * f * (2 * BF16 + BF16))
    yield product("down", p, h, f, layers)
    yield last_row(g, p)
    if boundaries:
        yield Work("capture", f"{p}×{h}", len(boundaries), 0, p * h * (FLOAT + BF16))


def last_row(g: TargetGeometry, positions: int) -> Work:
    """The last row through attention and the rest of the last layer."""
    h, f, queries = g.hidden, g.intermediate, g.heads * g.head_dim
    weights = queries * h + 3 * h * f
    return Work(
        "last row",
        f"1×{h}",
        1,
        2 * weights + 4 * queries * positions,
        (weights + 2 * positions * g.kv_heads * g.head_dim) * BF16,
    )


def draft_works(g: DraftGeometry, positions: int) -> Iterator[Work]:
    """Of all positions whose next token is known. The draft's queries are not needed."""
    p, h = positions, g.hidden
    yield product("draft fc", p, h, g.features * g.target_hidden, 1)
    yield Work("draft input", f"{p}×{2 * h}", 1, 0, p * (LONG + 4 * h * BF16) + 2 * h * BF16)
    yield product("draft kv", p, 2 * g.kv_heads * g.head_dim, 2 * h, 1)
    yield heads("draft heads", 0, g.kv_heads, g.head_dim, p, 1)


def product(part: str, rows: int, n: int, k: int, times: int) -> Work:
    """[rows, k] · [n, k]ᵀ in bfloat16."""
    return Work(part, f"{rows}×{n}×{k}", times, 2 * rows * n * k, (rows * k + n * k + rows * n) * BF16)


def heads(part: str, queries: int, kv_heads: int, head_dim: int, rows: int, times: int) -> Work:
    """Queries, keys and values are read, queries and keys written back, and keys and values into whole cache blocks; a
    position's angles are read once.
    """
    blocks = -(-rows // BLOCK)
    packed, turned = (queries + 2 * kv_heads) * head_dim, (queries + kv_heads) * head_dim
    cached = 2 * blocks * BLOCK * kv_heads * head_dim
    size = (rows * (packed + turned) + cached) * BF16 + rows * head_dim * FLOAT + blocks * LONG
    return Work(part, f"{rows}×{packed}", times, 0, size)


def width_of(g: TargetGeometry | DraftGeometry) -> int:
    return (g.heads + 2 * g.kv_heads) * g.head_dim
