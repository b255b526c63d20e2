"""The kernels of one decoder layer of a target with a mixture of experts, in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.attention.attention import Attention, TreeNodes
from specgate.backends.eagle3.cupy.kernels.experts.launchers import Route
from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import PreNormRows
from specgate.backends.eagle3.cupy.kernels.peers.launchers import AllReduce
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows
from specgate.backends.eagle3.cupy.memory.buffers import LayerBuffers, Pages
from specgate.backends.eagle3.cupy.memory.model import ExpertLayerWeights
from specgate.backends.eagle3.cupy.memory.sizes import Sizes
from specgate.backends.eagle3.cupy.step.layer import Place, RowPositions, unwatched
from specgate.backends.eagle3.cupy.stream import mark
from specgate.backends.eagle3.cupy.tuned.gemms import Gemms
from specgate.checkpoints.geometry import TargetGeometry


class ExpertLayer:
    """The kernels of the layers, with `rows` rows per slot. Layers differ in the window of their attention alone.
    `watch` is as that of `Layer`.

    The norm before the router, too, has no kernel of its own: the router divides by the root mean square, and leaves
    the normed rows for the experts.

    Where several GPUs share the target, each has its heads, and its part of every expert's width. All of them make the
    same router logits of the same rows, and so choose the same experts.
    """

    def __init__(
        self,
        geometry: TargetGeometry,
        sizes: Sizes,
        slots: int,
        gemms: Gemms,
        *,
        rows: int,
        names: tuple[str, str],
        tree: TreeNodes | None = None,
        ranks: int = 1,
    ) -> None:
        """`tree`: which nodes of a tree the rows are. `ranks`: so many GPUs share the layer, of which `geometry` has
        the part of one.
        """
        g, most, heads = geometry, slots * rows, sizes.heads(geometry)
        assert g.experts is not None
        self.geometry, self.names = g, names
        self.watch: Callable[[Place], None] = unwatched
        self.qkv = gemms("TARGET_QKV", heads.qkv_width, g.hidden, most, scaled=True, biased=g.biases)
        self.attention = {
            window: Attention(
                *(heads, rows, window),
                config=sizes.fmha,
                sinks=g.sinks,
                may_join=window is not None,
                tree=tree,
            )
            for window in dict.fromkeys(map(g.window, range(g.layers)))
        }
        self.reduce = AllReduce(g.hidden, most, ranks, sizes.rows) if ranks > 1 else None
        ends: dict[str, bool] = {"partial": True} if self.reduce else {"feeds_norm": True}
        self.o = gemms("TARGET_O", g.hidden, heads.width, most, biased=g.biases, **ends)
        self.route = Route(g.hidden, g.experts, most)
        self.gate_up = gemms.expert_gate_up(g, most)
        self.down = gemms.expert_down(g, most, partial=ranks > 1)

    def kernels(self) -> Mapping[str, Kernel]:
        """Name → launcher, in stream order; `attention` sees all positions, `attention_N` a window of N."""
        windows = {f"attention_{w}" if w else "attention": kernel for w, kernel in self.attention.items()}
        return {
            "qkv": self.qkv,
            **windows,
            "o": self.o,
            **({"reduce": self.reduce} if self.reduce else {}),
            "route": self.route,
            "expert_gate_up": self.gate_up,
            "expert_down": self.down,
        }

    def __call__(
        self,
        b: LayerBuffers,
        w: ExpertLayerWeights,
        next_norm: Tensor,
        pages: Pages,
        index: int,
        rows: Rows,
        at: RowPositions,
        step: Tensor,
    ) -> None:
        """Run layer `index` on the rows in `b.pre_norm`. Adds its result to `b.stream`, and leaves the input of the
        norm with weight `next_norm` [H] in `b.pre_norm`; `step` [1] is the number of the step.
        """
        m, eps = b.mixture, self.geometry.rms_eps
        assert m is not None
        self.watch("input")
        with mark(self.names[0]):
            self.qkv(b.qkv, b.pre_norm, w.qkv, rows, eps=eps, bias=w.qkv_bias)
            attention = self.attention[self.geometry.window(index)]
            of_kind = {"finished": m.joined} if attention.joins else {}
            groups = b.partial, pages.of_layer(index), *at.of_layer(index)
            attention(b.attended, b.qkv, rows, *groups, sinks=w.sinks, **of_kind)
            out, norm = self._sum_of(b, w.post_norm)
            self.o(out, b.attended, w.o, rows, norm=norm, bias=w.o_bias)
            self._reduce(b, w.post_norm, rows)
        self.watch("o")
        with mark(self.names[1]):
            self.route(m.logits, m.x16, b.pre_norm, w.router, w.router_bias, rows, eps=eps)
            self.gate_up(m.act, m.x16, w.gate_up, m.logits, rows)
            out, norm = self._sum_of(b, next_norm)
            self.down(*(out, norm, m.parts, m.finished, m.act, w.down, m.logits, rows), log=(m.touched, step, index))
            self._reduce(b, next_norm, rows)
        self.watch("down")

    def _sum_of(self, b: LayerBuffers, norm: Tensor) -> tuple[Tensor, tuple[PreNormRows, Tensor] | None]:
        """Return the stream that a product adds to, and the norm that it prepares; or the buffer of its partial
        sums.
        """
        if self.reduce is None:
            return b.stream, (b.pre_norm, norm)
        assert b.mailboxes is not None
        return b.mailboxes.partial, None

    def _reduce(self, b: LayerBuffers, norm: Tensor, rows: Rows) -> None:
        """Add the partial sums that products have left on all ranks to the stream, and the input of the next norm."""
        if self.reduce is not None:
            assert b.mailboxes is not None
            self.reduce(b.stream, b.pre_norm, norm, b.mailboxes, rows)
