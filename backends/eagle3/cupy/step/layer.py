"""The kernels of one decoder layer, in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.attention.attention import Attention, NodeTensors, TreeNodes
from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import MatmulRows, PreNormRows
from specgate.backends.eagle3.cupy.kernels.partial.launchers import WideAttention
from specgate.backends.eagle3.cupy.kernels.peers.launchers import AllReduce
from specgate.backends.eagle3.cupy.kernels.state.slots import KVBlocks, Rows
from specgate.backends.eagle3.cupy.memory.buffers import LayerBuffers, Pages
from specgate.backends.eagle3.cupy.memory.model import RopeTable
from specgate.backends.eagle3.cupy.memory.partial import PartialBuffers
from specgate.backends.eagle3.cupy.memory.sizes import Sizes
from specgate.backends.eagle3.cupy.stream import mark
from specgate.backends.eagle3.cupy.tuned.gemms import Gemms
from specgate.backends.eagle3.lib.weights import LayerWeights
from specgate.checkpoints.geometry import DraftGeometry, TargetGeometry


@dataclass(frozen=True, slots=True)
class RowPositions:
    """At which positions the rows of a layer stand: row t of a slot at `length` [S] + `offset` + t.

    With `counts` [S], a slot has only so many rows. The last of them stands at `length` + `offset`, and is the only
    query row.

    With `nodes`, of all layers, rows are nodes of a tree, and stand where `Attention` says. With `part`, they look at a
    part of the cache, or they begin at position `part.verified`, and choose such a part.
    """

    rope: RopeTable
    kv: KVBlocks
    length: Tensor
    offset: int = 0
    counts: Tensor | None = None
    nodes: NodeTensors | None = None
    part: PartialBuffers | None = None

    def of_layer(self, index: int) -> tuple[object, ...]:
        """Return what has the operands of attention in a layer."""
        return self, self.rope, self.kv, self.nodes and self.nodes.of_layer(index)


Place = Literal["input", "o", "down"]
"""Where a layer's residual stream can be looked at: before its first kernel, after each product that adds to it."""


class Layer:
    """The kernels of a decoder layer. `rows` rows per slot enter attention; the newest `query_rows` of them go on.

    A norm has no kernel of its own. What comes before a norm leaves its input as `PreNormRows`, and the product that
    follows divides by the root mean square.

    `watch` is called at every `Place`, once the kernels before it have been launched. A captured step has none.
    """

    def __init__(
        self,
        geometry: TargetGeometry | DraftGeometry,
        sizes: Sizes,
        slots: int,
        gemms: Gemms,
        whose: Literal["EAGLE3", "TARGET"],
        *,
        rows: int,
        query_rows: int,
        names: tuple[str, str],
        input_width: int | None = None,
        window: int | None = None,
        tree: TreeNodes | None = None,
        ranks: int = 1,
        attention: Attention | WideAttention | None = None,
    ) -> None:
        """`input_width`: width of the input rows, which then are normed already. None: they are `PreNormRows`, as wide
        as the stream. `tree`: which nodes of a tree the rows are. `ranks`: so many GPUs share the layer, of which
        `geometry` has the part of one. `attention`: in place of the usual one.
        """
        hidden, going_on, heads = geometry.hidden, slots * query_rows, sizes.heads(geometry)
        self.eps, self.names = geometry.rms_eps, names
        self.watch: Callable[[Place], None] = unwatched
        self.qkv = gemms(
            f"{whose}_QKV", heads.qkv_width, input_width or hidden, slots * rows, scaled=input_width is None
        )
        self.attention = attention or Attention(heads, query_rows, window, appended=rows, config=sizes.fmha, tree=tree)
        self.reduce = AllReduce(hidden, going_on, ranks, sizes.rows) if ranks > 1 else None
        ends: dict[str, bool] = {"partial": True} if self.reduce else {"feeds_norm": True}
        self.o = gemms(f"{whose}_O", hidden, heads.width, going_on, **ends)
        self.gate_up = gemms(f"{whose}_FFN_GATE_UP", geometry.intermediate, hidden, going_on, scaled=True)
        self.down = gemms(f"{whose}_FFN_DOWN", hidden, geometry.intermediate, going_on, **ends)

    def kernels(self) -> Mapping[str, Kernel]:
        """Name → launcher, in stream order."""
        return {
            "qkv": self.qkv,
            "attention": self.attention,
            "o": self.o,
            **({"reduce": self.reduce} if self.reduce else {}),
            "gate_up": self.gate_up,
            "down": self.down,
        }

    def __call__(
        self,
        b: LayerBuffers,
        w: LayerWeights,
        next_norm: Tensor,
        pages: Pages,
        index: int,
        x: Tensor | PreNormRows,
        rows: Rows,
        query_rows: Rows,
        at: RowPositions,
    ) -> None:
        """Run layer `index` on the attention input `x`. Adds its result to `b.stream`, and leaves the input of the norm
        with weight `next_norm` [H] in `b.pre_norm`.
        """
        self.watch("input")
        with mark(self.names[0]):
            self.qkv(b.qkv, x, w.qkv, rows, eps=self.eps)
            self._attend(b, pages, index, query_rows, at)
            self._add(self.o, b, b.attended, w.o, w.post_norm, query_rows)
        self.watch("o")
        with mark(self.names[1]):
            self.gate_up(b.mlp, b.pre_norm, w.gate_up, query_rows, eps=self.eps)
            self._add(self.down, b, b.mlp, w.down, next_norm, query_rows)
        self.watch("down")

    def _attend(self, b: LayerBuffers, pages: Pages, index: int, rows: Rows, at: RowPositions) -> None:
        p, groups = at.part, (b.partial, pages.of_layer(index), *at.of_layer(index))
        if isinstance(self.attention, WideAttention):
            assert p is not None
            self.attention(b.attended, b.qkv, rows, *groups, first=p.verified, asked=p.asked[index])
            return
        part = {} if p is None else {"kept": p.kept[index], "dropped": p.dropped}
        self.attention(b.attended, b.qkv, rows, *groups, **part)

    def _add(self, product: MatmulRows, b: LayerBuffers, x: Tensor, weight: Tensor, norm: Tensor, rows: Rows) -> None:
        """stream += x · weightᵀ, and the input of the norm with weight `norm`."""
        if self.reduce is None:
            product(b.stream, x, weight, rows, norm=(b.pre_norm, norm))
            return
        assert b.mailboxes is not None
        product(b.mailboxes.partial, x, weight, rows)
        self.reduce(b.stream, b.pre_norm, norm, b.mailboxes, rows)


def unwatched(place: Place) -> None:
    """Nobody looks."""
