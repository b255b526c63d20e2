"""Launchers of the kernels of a prefill."""

from __future__ import annotations

from math import ceil
from typing import Final

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.experts.packing import Order, PackedExperts
from specgate.backends.eagle3.cupy.kernels.heads import BLOCK, Heads
from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.operands import ARGUMENT
from specgate.backends.eagle3.lib.kv.modes import KvMode

MOST_THREADS: Final = 512
"""Most threads of a row: more would leave an SM with too few rows to read while others wait for their sums."""
GROUP: Final = 8
"""Elements of a thread that lie beside each other."""


def row_threads(width: int) -> int:
    """Threads for a row of `width` elements: whole warps, as few as give each thread equally many groups."""
    groups = ceil(width / GROUP)
    each = ceil(groups / MOST_THREADS)
    return 32 * ceil(groups / each / 32)


class Rowwise(Kernel):
    """A kernel with a block of threads for each row of `hidden` elements."""

    hidden: int

    @property
    def constants(self) -> dict[str, int | float]:
        return {**super().constants, "threads": row_threads(self.hidden)}


class PrefillStream(Rowwise):
    """x becomes x + `added`, or the embeddings of `tokens`; and `normed` becomes the RMSNorm of x with `weight`."""


THREADS: Final = 256


class PrefillHeads(Kernel):
    """Rotates the queries and keys of positions 0 … P − 1 in place, in `qkv` bfloat16 [P, (N + 2G)·D], and writes keys
    and values into the cache of one layer.

    `blocks` int64: the blocks of the positions, in order; `table`: cos and sin, float32 [P', D/2]. N may be 0. Pages,
    and the scales of formats that have some: as `memory.Pages` has them of one layer.

    In another format than bfloat16, keys and values in `qkv` become what the cache holds of them.
    """

    def __init__(self, heads: int, kv_heads: int, head_dim: int, *, kv: KvMode = "bf16", norm_eps: float = 0.0) -> None:
        """`kv`: the format of the cache; `norm_eps`: as `Heads` has it."""
        self.heads = Heads(heads, kv_heads, head_dim, BLOCK, kv, norm_eps)
        super().__init__("prefill_heads", shared_bytes=0, **self.heads.constants, threads=THREADS)

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
        common: dict[str, ARGUMENT] = {"qkv": qkv, "blocks": blocks, "positions": qkv.shape[0]}
        pages: dict[str, ARGUMENT] = {"k_pages": k_pages, "v_pages": v_pages, "scales": scales}
        coded, kv = {**common, **pages, "PAGES": k_pages.shape[0]}, self.heads.kv
        if kv != "bf16":  # before anything is written
            self.checked(f"prefill_{kv}", (), coded)
        written = pages if kv == "bf16" else {}
        self.launch(None, **common, **written, cosine=table[0], sine=table[1], head_norms=head_norms)
        if kv == "nvfp4":
            self.launch((1, self.heads.kv_heads), function="prefill_nvfp4_outer", threads=64, **coded)
        if kv != "bf16":
            self.launch(None, function=f"prefill_{kv}", **coded)


class PrefillGate(Kernel):
    """out = SiLU(gate) · up: bfloat16 [R, 2F], gates first → bfloat16 [R, F]."""

    intermediate: int
    threads: int = THREADS


class PrefillDraft(Rowwise):
    """The draft's input [norm(embed(token)), norm(hidden)] of `hidden` and `tokens`, each the one after its row."""


class PrefillRoute(Kernel):
    """`chosen`: the experts of the k largest of logits + bias, in that order, the lower one first among equals;
    `weights`: the softmax over these k.
    """

    experts: int
    per_token: int
    threads: int = 128


class PrefillDecode(Kernel):
    """out = matrices of experts [N, K] as they are in the checkpoint, bfloat16: bit by bit `PackedExperts.matrix`."""

    n_out: int
    k_in: int
    paired: Order
    threads: int = THREADS

    def __call__(self, out: Tensor, weight: PackedExperts, first: int, sizes: Tensor) -> None:
        """The experts from `first` on, as many as `out` bfloat16 [n, N, K] holds. `sizes` int32 [E]: the rows of each
        expert; where there are none, `out` stays as it is.

        Raises ValueError for operands that this launcher was not made for.
        """
        self.launch(None, weight, out=out, tiles=weight.weight[first:], sizes=sizes[first:], COUNT=len(out))


class PrefillSwiglu(Kernel):
    """act = gate · σ(alpha · gate) · (up + 1), bfloat16 [R, F], of `both` bfloat16 [R, 2F], gates at even places, each
    row with the bias of its expert, `experts`, added.
    """

    intermediate: int
    alpha: float
    limit: float
    threads: int = THREADS


class PrefillMixture(Rowwise):
    """x float32 [R, H] += Σ_j weights_j · (out_j + bias) over the k experts of a row, in their order; and `normed`
    bfloat16 [R, H] becomes the RMSNorm of x. `out` is in the order of experts; `place`: where a pair lies there.

    With `partial`, `normed` becomes that sum, rounded once: what one of several GPUs has of a mixture.
    """

    per_token: int
    partial: int | None = None
