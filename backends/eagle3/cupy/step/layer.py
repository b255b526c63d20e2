"""The kernels of one decoder layer, in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.attention.attention import Attention, NodeTensors, TreeNodes
from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import PreNormRows
from specgate.backends.eagle3.cupy.kernels.partial.launchers import WideAttention
from specgate.backends.eagle3.cupy.kernels.peers.launchers import AllReduce
from specgate.backends.eagle3.cupy.kernels.state.slots import KVBlocks, Rows
from specgate.backends.eagle3.cupy.memory.buffers import LayerBuffers, Pages
from specgate.backends.eagle3.cupy.memory.model import ExpertLayerWeights, LayerWeights, RopeTable
from specgate.backends.eagle3.cupy.memory.partial import PartialBuffers
from specgate.backends.eagle3.cupy.memory.sizes import Sizes
from specgate.backends.eagle3.cupy.stream import mark
from specgate.backends.eagle3.cupy.tuned.gemms import Gemms
from specgate.checkpoints.geometry import DraftGeometry, TargetGeometry


@dataclass(frozen=True, slots=True)
class RowPositions:
    """At which positions the rows of a layer stand: row t of a slot at `length` [S] + `offset` + t.

    With `counts` [S], a slot has only so many rows. The last of them stands at `length` + `offset`, and is the only
    query row.

    With `nodes`, of all layers, rows are nodes of a tree, and stand where `Attention` says. With `part`, they look at a
    part of the cache, or they begin at position `first` [S], and choose such a part. `step` [1]: the number of the
    step.
    """

    rope: RopeTable
    kv: KVBlocks
    length: Tensor
    offset: int = 0
    counts: Tensor | None = None
    nodes: NodeTensors | None = None
    part: PartialBuffers | None = None
    step: Tensor | None = None
    first: Tensor | None = None

    @property
    def begins(self) -> Tensor:
        """Return the position of each slot's row 0, less `offset`."""
        return self.length if self.first is None else self.first

    def of_layer(self, index: int) -> tuple[object, ...]:
        """Return what has the operands of attention in a layer."""
        return self, self.rope, self.kv, self.nodes and self.nodes.of_layer(index)


Place = Literal["input", "o", "down"]
"""Where a layer's residual stream can be looked at: before its first kernel, after each product that adds to it."""


RANGES: Final[Mapping[str, tuple[str, str]]] = {
    "TARGET": ("TARGET_ATTENTION_FMHA", "TARGET_FFN"),
    "EAGLE3": ("EAGLE_DRAFT_ATTENTION_FMHA", "EAGLE_DRAFT_FFN"),
}
"""The ranges of a layer's two parts, by the tag of its products."""
Attend = Attention | WideAttention
AnyWeights = LayerWeights | ExpertLayerWeights


def usual(window: int | None) -> Attend | None:
    """No attention in place of a layer's own."""
    return None


class Layer:
    """The kernels of the decoder layers of a target or a draft. `rows` rows per slot enter attention; the newest
    `query_rows` of them go on. Layers differ in the window of their attention alone.

    A norm has no kernel of its own. What comes before a norm leaves its input as `PreNormRows`, and the product that
    follows divides by the root mean square.

    Where several GPUs share the layers, each has its heads, and its part of the feed-forward width. Products that add
    to the stream leave partial sums, which all ranks add up.

    `watch` is called at every `Place`, once the kernels before it have been launched. A captured step has none.
    """

    joins: ClassVar = False
    """Attention with a window joins chunks itself, where there are few."""

    def __init__(
        self,
        geometry: TargetGeometry | DraftGeometry,
        sizes: Sizes,
        slots: int,
        gemms: Gemms,
        *,
        rows: int,
        query_rows: int,
        tree: TreeNodes | None = None,
        ranks: int = 1,
        attention: Callable[[int | None], Attend | None] = usual,
    ) -> None:
        """`geometry`: a draft's input rows are twice as wide as the stream, and normed already; a target's are
        `PreNormRows`. `tree`: which nodes of a tree the rows are. `ranks`: so many GPUs share the layer, of which
        `geometry` has the part of one. `attention`: what attends with a window in place of the usual one, or None.
        """
        g, hidden, going_on, heads = geometry, geometry.hidden, slots * query_rows, sizes.heads(geometry)
        biased, sinks = (g.biases, g.sinks) if isinstance(g, TargetGeometry) else (False, False)
        self.windows = [*map(g.window, range(g.layers))] if isinstance(g, TargetGeometry) else [g.window]
        whose = "TARGET" if isinstance(g, TargetGeometry) else "EAGLE3"
        self.eps, self.names = g.rms_eps, RANGES[whose]
        self.watch: Callable[[Place], None] = unwatched
        of_target = whose == "TARGET"
        width = hidden if of_target else 2 * hidden
        self.qkv = gemms(f"{whose}_QKV", heads.qkv_width, width, slots * rows, scaled=of_target, biased=biased)
        self.attention: dict[int | None, Attend] = {
            window: attention(window)
            or Attention(
                *(heads, query_rows, window),
                appended=rows,
                config=sizes.fmha,
                sinks=sinks,
                may_join=self.joins and window is not None,
                tree=tree,
            )
            for window in dict.fromkeys(self.windows)
        }
        self.reduce = AllReduce(hidden, going_on, ranks, sizes.rows) if ranks > 1 else None
        self.ends: dict[str, bool] = {"partial": True} if self.reduce else {"feeds_norm": True}
        self.o = gemms(f"{whose}_O", hidden, heads.width, going_on, biased=biased, **self.ends)
        self.products(g, gemms, whose, going_on)

    def products(self, g: Any, gemms: Gemms, whose: str, rows: int) -> None:
        """Make the launchers of the feed-forward part."""
        self.gate_up = gemms(f"{whose}_FFN_GATE_UP", g.intermediate, g.hidden, rows, scaled=True)
        self.down = gemms(f"{whose}_FFN_DOWN", g.hidden, g.intermediate, rows, **self.ends)

    def kernels(self) -> Mapping[str, Kernel]:
        """Name → launcher, in stream order; of several attentions, `attention_N` sees a window of N."""
        several = len(self.attention) > 1
        return {
            "qkv": self.qkv,
            **{f"attention_{w}" if w and several else "attention": kernel for w, kernel in self.attention.items()},
            "o": self.o,
            **({"reduce": self.reduce} if self.reduce else {}),
            **self.feed_forward_kernels(),
        }

    def feed_forward_kernels(self) -> Mapping[str, Kernel]:
        return {"gate_up": self.gate_up, "down": self.down}

    def __call__(
        self,
        b: LayerBuffers,
        w: AnyWeights,
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
            self.qkv(b.qkv, x, w.qkv, rows, eps=self.eps, bias=self.bias_of(w, "qkv"))
            self._attend(b, w, pages, index, query_rows, at)
            out, norm = self.sum_of(b, w.post_norm)
            self.o(out, b.attended, w.o, query_rows, norm=norm, bias=self.bias_of(w, "o"))
            self.reduced(b, w.post_norm, query_rows)
        self.watch("o")
        with mark(self.names[1]):
            self.feed_forward(b, w, next_norm, index, query_rows, at)
        self.watch("down")

    def bias_of(self, w: AnyWeights, product: Literal["qkv", "o"]) -> Tensor | None:
        return None

    def of_heads(self, b: LayerBuffers, w: Any) -> dict[str, Any]:
        """Return operands of attention that not every kind of layer has, by name."""
        return {"head_norms": w.head_norms}

    def feed_forward(
        self, b: LayerBuffers, w: Any, next_norm: Tensor, index: int, rows: Rows, at: RowPositions
    ) -> None:
        """Add the feed-forward part of layer `index` to the stream."""
        self.gate_up(b.mlp, b.pre_norm, w.gate_up, rows, eps=self.eps)
        out, norm = self.sum_of(b, next_norm)
        self.down(out, b.mlp, w.down, rows, norm=norm)
        self.reduced(b, next_norm, rows)

    def _attend(self, b: LayerBuffers, w: AnyWeights, pages: Pages, index: int, rows: Rows, at: RowPositions) -> None:
        p, attention = at.part, self.attention[self.windows[index]]
        groups = b.partial, pages.of_layer(index), *at.of_layer(index)
        if isinstance(attention, WideAttention):
            assert p is not None
            attention(b.attended, b.qkv, rows, *groups, first=p.verified, asked=p.asked[index], **self.of_heads(b, w))
            return
        part = {"kept": p.kept[index], "dropped": p.dropped} if p is not None and attention.kept else {}
        joined = {"finished": b.mixture.joined} if attention.joins and b.mixture else {}
        attention(b.attended, b.qkv, rows, *groups, length=at.begins, **part, **joined, **self.of_heads(b, w))

    def sum_of(self, b: LayerBuffers, norm: Tensor) -> tuple[Tensor, tuple[PreNormRows, Tensor] | None]:
        """Return the stream that a product adds to, and the norm that it prepares; or its buffer of partial sums."""
        if self.reduce is None:
            return b.stream, (b.pre_norm, norm)
        assert b.mailboxes is not None
        return b.mailboxes.partial, None

    def reduced(self, b: LayerBuffers, norm: Tensor, rows: Rows) -> None:
        """Add the partial sums that products have left on all ranks to the stream, and the input of the next norm."""
        if self.reduce is not None:
            assert b.mailboxes is not None
            self.reduce(rows, b.pre_norm, b.mailboxes, b.mailboxes.sums, stream=b.stream, norm_weight=norm)


def unwatched(place: Place) -> None:
    """Nobody looks."""
