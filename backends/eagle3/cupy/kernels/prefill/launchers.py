"""Launchers of the kernels of a prefill."""

from __future__ import annotations

from math import ceil
from typing import Final

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.experts.packing import TILE, Order, PackedExperts, tile_bytes
from specgate.backends.eagle3.cupy.kernels.heads import BLOCK, Heads
from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.operands import ARGUMENT
from specgate.backends.eagle3.cupy.kernels.rows.launchers import InputWeights
from specgate.backends.eagle3.lib.kv.modes import KvMode
from specgate.checkpoints.geometry import ExpertGeometry

MOST_THREADS: Final = 512
"""Most threads of a row: more would leave an SM with too few rows to read while others wait for their sums."""
GROUP: Final = 8
"""Elements of a thread that lie beside each other."""


def row_threads(width: int) -> int:
    """Threads for a row of `width` elements: whole warps, as few as give each thread equally many groups."""
    groups = ceil(width / GROUP)
    each = ceil(groups / MOST_THREADS)
    return 32 * ceil(groups / each / 32)


class PrefillStream(Kernel):
    """x float32 [R, H] becomes x + `added` (bfloat16 [R, H]), or the embeddings (bfloat16 [V, H]) of `tokens`
    (int64 [R]); and `normed` bfloat16 [R, H] becomes the RMSNorm of x with `weight` [H].
    """

    def __init__(self, hidden: int) -> None:
        super().__init__("prefill_stream", hidden=hidden, threads=row_threads(hidden))
        self.hidden, self.threads = hidden, row_threads(hidden)

    def __call__(
        self, normed: Tensor, x: Tensor, source: Tensor | tuple[Tensor, Tensor], weight: Tensor, eps: float
    ) -> None:
        """`source`: what is added, or (embedding, tokens)."""
        added, (embedding, tokens) = (source, (None, None)) if isinstance(source, Tensor) else (None, source)
        read = {"added": added, "embedding": embedding, "tokens": tokens}
        self.launch((len(x),), x=x, **read, normed=normed, weight=weight, eps=eps, R=len(x))


THREADS: Final = 256
TOGETHER: Final = 4
"""Heads that one block rotates, as in the kernel."""


class PrefillHeads(Kernel):
    """Rotates the queries and keys of positions 0 … P − 1 in place, in `qkv` bfloat16 [P, (N + 2G)·D], and writes keys
    and values into the cache of one layer.

    `blocks` int64: the blocks of the positions, in order; `table`: cos and sin, float32 [P', D/2]. N may be 0. Pages,
    and the scales of formats that have some: as `memory.Pages` has them of one layer.

    In another format than bfloat16, keys and values in `qkv` become what the cache holds of them.
    """

    def __init__(self, heads: int, kv_heads: int, head_dim: int, *, kv: KvMode = "bf16", norm_eps: float = 0.0) -> None:
        """`kv`: the format of the cache; `norm_eps`: as `Heads` has it."""
        self.sizes = Heads(heads, kv_heads, head_dim, BLOCK, kv, norm_eps)
        constants = {name: value for name, value in self.sizes.constants.items() if name != "max_blocks"}
        super().__init__("prefill_heads", shared_bytes=0, **constants, threads=THREADS)

    def __call__(
        self,
        qkv: Tensor,
        k_pages: Tensor,
        v_pages: Tensor,
        blocks: Tensor,
        table: tuple[Tensor, Tensor],
        scales: Tensor | None = None,
        head_norms: Tensor | None = None,
    ) -> None:
        """`head_norms` bfloat16 [2, D]: weights of the norms of queries and of keys. Raises ValueError for pages of
        another format, and for scales and norms where there are none, and the other way around.
        """
        h, positions = self.sizes, len(qkv)
        used, plain = -(-positions // BLOCK), h.kv == "bf16"
        common: dict[str, ARGUMENT] = {"qkv": qkv, "blocks": blocks, "positions": positions}
        pages: dict[str, ARGUMENT] = {"k_pages": k_pages, "v_pages": v_pages, "scales": scales}
        coded: dict[str, ARGUMENT] = {**common, **pages, "PAGES": len(k_pages)}
        if not plain:  # before anything is written
            self.operands_of(f"prefill_{h.kv}").arguments((), coded)
        self.launch(
            (used, -(-(h.heads + h.kv_heads) // TOGETHER) + (h.kv_heads if plain else 0)),
            **common,
            **(pages if plain else {}),
            cosine=table[0],
            sine=table[1],
            head_norms=head_norms,
        )
        if h.kv == "nvfp4":
            self.launch((1, h.kv_heads), function="prefill_nvfp4_outer", threads=64, **coded)
        if not plain:
            self.launch((used, h.kv_heads), function=f"prefill_{h.kv}", **coded)


class PrefillGate(Kernel):
    """out = SiLU(gate) · up: bfloat16 [R, 2F], gates first → bfloat16 [R, F]."""

    def __init__(self, intermediate: int) -> None:
        super().__init__("prefill_gate", intermediate=intermediate, threads=THREADS)
        self.intermediate = intermediate

    def __call__(self, out: Tensor, gate_up: Tensor) -> None:
        rows = len(gate_up)
        self.launch((-(-rows * (self.intermediate // GROUP) // THREADS),), out=out, gate_up=gate_up, rows=rows)


class PrefillDraft(Kernel):
    """The draft's input [norm(embed(token)), norm(hidden)], bfloat16 [R, 2H], of `hidden` bfloat16 [R, H] and `tokens`
    int64 [R], each the one after its row.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__("prefill_draft", hidden=hidden, threads=row_threads(hidden))
        self.hidden, self.threads = hidden, row_threads(hidden)

    def __call__(self, out: Tensor, hidden: Tensor, tokens: Tensor, weights: InputWeights, eps: float) -> None:
        rows = len(hidden)
        self.launch((rows,), weights, input=out, hidden=hidden, tokens=tokens, eps=eps, R=rows)


ROUTE_THREADS: Final = 128


class PrefillRoute(Kernel):
    """`chosen` int32 [R, k]: the experts of the k largest of logits + bias, in that order, the lower one first among
    equals; `weights` float32 [R, k]: the softmax over these k.
    """

    def __init__(self, experts: ExpertGeometry) -> None:
        super().__init__("prefill_route", experts=experts.count, per_token=experts.per_token, threads=ROUTE_THREADS)
        self.experts = experts

    def __call__(self, chosen: Tensor, weights: Tensor, logits: Tensor, bias: Tensor) -> None:
        """`logits` float32 [R, E]; `bias` bfloat16 [E]."""
        rows = len(logits)
        self.launch((-(-rows // ROUTE_THREADS),), chosen=chosen, weights=weights, logits=logits, bias=bias, rows=rows)


class PrefillDecode(Kernel):
    """out = matrices of experts [N, K] as they are in the checkpoint, bfloat16: bit by bit `PackedExperts.matrix`."""

    def __init__(self, rows: int, columns: int, order: Order) -> None:
        super().__init__("prefill_decode", n_out=rows, k_in=columns, paired=int(order), threads=THREADS)
        self.rows, self.columns, self.order = rows, columns, order

    def __call__(self, out: Tensor, weight: PackedExperts, first: int, sizes: Tensor) -> None:
        """The experts from `first` on, as many as `out` bfloat16 [n, N, K] holds. `sizes` int32 [E]: the rows of each
        expert; where there are none, `out` stays as it is.

        Raises ValueError for operands that this launcher was not made for.
        """
        if weight.order is not self.order:
            raise ValueError(f"weights in the order {weight.order.name} for a launcher of {self.order.name}")
        experts, tiles = len(weight.tiles), self.rows // TILE
        if not 0 <= first <= experts - len(out):
            raise ValueError(f"{len(out)} experts from {first} on: there are {experts}")
        operands = {"out": out, "tiles": weight.tiles[first:], "sizes": sizes[first:]}
        self.launch((tiles, len(out)), **operands, COUNT=len(out), TILE_BYTES=tile_bytes(self.columns))


class PrefillSwiglu(Kernel):
    """act = gate · σ(alpha · gate) · (up + 1), bfloat16 [R, F], of `both` bfloat16 [R, 2F], gates at even places, each
    row with the bias of its expert added.
    """

    def __init__(self, intermediate: int, experts: ExpertGeometry) -> None:
        super().__init__(
            "prefill_swiglu",
            intermediate=intermediate,
            alpha=experts.alpha,
            limit=experts.limit,
            threads=THREADS,
        )
        self.intermediate, self.count = intermediate, experts.count

    def __call__(self, act: Tensor, both: Tensor, bias: Tensor, experts: Tensor) -> None:
        """`bias` bfloat16 [E, 2F]; `experts` int32 [R]: of each row."""
        rows = len(both)
        grid = (-(-rows * (self.intermediate // GROUP) // THREADS),)
        self.launch(grid, act=act, both=both, bias=bias, experts=experts, pairs=rows, EXPERTS=self.count)


Places = tuple[Tensor, Tensor, Tensor]
"""Of each row and place: where it lies among the sorted pairs, int32 [R, k], its expert, int32 [R, k], and its weight,
float32 [R, k].
"""


class PrefillMixture(Kernel):
    """x float32 [R, H] += Σ_j weight_j · (out_j + bias) over the k experts of a row, in their order; and `normed`
    bfloat16 [R, H] becomes the RMSNorm of x.
    """

    def __init__(self, hidden: int, experts: ExpertGeometry) -> None:
        super().__init__("prefill_mixture", hidden=hidden, per_token=experts.per_token, threads=row_threads(hidden))
        self.hidden, self.experts, self.threads = hidden, experts, row_threads(hidden)

    def __call__(
        self,
        normed: Tensor,
        x: Tensor,
        out: Tensor,
        bias: Tensor,
        routing: Places,
        norm: tuple[Tensor, float],
    ) -> None:
        """`out` bfloat16 [R · k, H], in the order of experts; `bias` bfloat16 [E, H]. `norm`: its weight bfloat16 [H],
        and its epsilon.
        """
        pairs = dict(zip(("place", "chosen", "weights"), routing, strict=True))
        operands = {"normed": normed, "x": x, "out": out, "bias": bias, **pairs}
        self.launch((len(x),), **operands, weight=norm[0], eps=norm[1], R=len(x), EXPERTS=self.experts.count)


class PrefillMixtureSum(Kernel):
    """`total` bfloat16 [R, H] = Σ_j weight_j · (out_j + bias) over the k experts of a row, in their order, rounded
    once: what one of several GPUs has of a mixture.
    """

    def __init__(self, hidden: int, experts: ExpertGeometry) -> None:
        threads = row_threads(hidden)
        super().__init__("prefill_mixture", hidden=hidden, per_token=experts.per_token, threads=threads, partial=1)
        self.hidden, self.experts, self.threads = hidden, experts, threads

    def __call__(self, total: Tensor, out: Tensor, bias: Tensor, routing: Places) -> None:
        """`out` bfloat16, all pairs in the order of experts, […, H]; `bias` bfloat16 [E, H]."""
        rows, pairs = len(routing[0]), dict(zip(("place", "chosen", "weights"), routing, strict=True))
        self.launch((rows,), normed=total, out=out, bias=bias, **pairs, eps=0.0, R=rows, EXPERTS=self.experts.count)
