"""The kernels of one decoder layer, in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from specgate.backends.cupy_eagle3.buffers import LayerBuffers, Pages
from specgate.backends.cupy_eagle3.kernels.attention import Attention
from specgate.backends.cupy_eagle3.kernels.heads import Heads
from specgate.backends.cupy_eagle3.kernels.kv_blocks import KVBlocks
from specgate.backends.cupy_eagle3.kernels.rms_norm import RmsNorm
from specgate.backends.cupy_eagle3.kernels.rope_append import RopeAppend
from specgate.backends.cupy_eagle3.kernels.slots import Rows
from specgate.backends.cupy_eagle3.model import RopeTable
from specgate.backends.cupy_eagle3.nvtx import mark
from specgate.backends.cupy_eagle3.tuning.gemms import Gemms
from specgate.backends.eagle3.geometry import DraftGeometry, TargetGeometry
from specgate.backends.eagle3.weights import LayerWeights


@dataclass(frozen=True, slots=True)
class Span:
    """Where the rows of a layer stand: row t of a slot at `length` [S] + `offset` + t.

    With `counts` [S], a slot has so many rows, the last at `length` + `offset`, and only that one attends.
    """

    rope: RopeTable
    kv: KVBlocks
    length: Tensor
    offset: int = 0
    counts: Tensor | None = None


class Layer:
    """`rows` enter attention per slot, `asking` of them (the newest) attend and go on."""

    def __init__(
        self,
        geometry: TargetGeometry | DraftGeometry,
        heads: Heads,
        slots: int,
        gemms: Gemms,
        whose: Literal["EAGLE3", "TARGET"],
        *,
        input_width: int,
        rows: int,
        asking: int,
        window: int | None,
        names: tuple[str, str],
    ) -> None:
        hidden, going_on = geometry.hidden, slots * asking
        self.eps, self.names = geometry.rms_eps, names
        self.qkv = gemms(f"{whose}_QKV", heads.qkv_width, input_width, slots * rows)
        self.rope_append = RopeAppend(heads)
        self.attention = Attention(heads, asking, window)
        self.o = gemms(f"{whose}_O", hidden, heads.width, going_on)
        self.norm = RmsNorm(hidden)
        self.gate_up = gemms(f"{whose}_FFN_GATE_UP", geometry.intermediate, hidden, going_on)
        self.down = gemms(f"{whose}_FFN_DOWN", hidden, geometry.intermediate, going_on)

    def __call__(
        self, b: LayerBuffers, w: LayerWeights, pages: Pages, index: int, x: Tensor, rows: Rows, asking: Rows, at: Span
    ) -> None:
        """Run layer `index` on the attention input `x`; add what it makes to `b.stream`."""
        k, v = pages.k[index], pages.v[index]
        with mark(self.names[0]):
            self.qkv(b.qkv, x, w.qkv, rows)
            self.rope_append(
                *(b.q, k, v, b.qkv, at.rope, at.kv.block_table, at.length, rows), offset=at.offset, counts=at.counts
            )
            self.attention(b.attended, b.partial, b.q, k, v, at.kv.block_table, at.length, asking, offset=at.offset)
            self.o(b.stream, b.attended, w.o, asking)
        with mark(self.names[1]):
            self.norm(b.normed, b.stream, w.post_norm, asking, self.eps)
            self.gate_up(b.mlp, b.normed, w.gate_up, asking)
            self.down(b.stream, b.mlp, w.down, asking)
