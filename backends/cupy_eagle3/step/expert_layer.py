"""The kernels of one decoder layer of a target with a mixture of experts, in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from specgate.backends.cupy_eagle3.kernels.attention.attention import Attention
from specgate.backends.cupy_eagle3.kernels.experts.expert_down import ExpertDown
from specgate.backends.cupy_eagle3.kernels.experts.expert_gate_up import ExpertGateUp
from specgate.backends.cupy_eagle3.kernels.experts.route import Route
from specgate.backends.cupy_eagle3.kernels.loader import Kernel
from specgate.backends.cupy_eagle3.kernels.state.slots import Rows
from specgate.backends.cupy_eagle3.memory.buffers import LayerBuffers, Pages
from specgate.backends.cupy_eagle3.memory.expert_weights import ExpertLayerWeights
from specgate.backends.cupy_eagle3.memory.sizes import Sizes
from specgate.backends.cupy_eagle3.nvtx import mark
from specgate.backends.cupy_eagle3.step.layer import Place, RowPositions, unwatched
from specgate.backends.cupy_eagle3.tuned.gemms import Gemms
from specgate.eagle3.geometry import TargetGeometry


class ExpertLayer:
    """The kernels of the layers, with `rows` rows per slot. Layers differ in the window of their attention alone.
    `watch` is as that of `Layer`.

    The norm before the router, too, has no kernel of its own: the router divides by the root mean square, and leaves
    the normed rows for the experts.
    """

    def __init__(
        self, geometry: TargetGeometry, sizes: Sizes, slots: int, gemms: Gemms, *, rows: int, names: tuple[str, str]
    ) -> None:
        g, most, heads = geometry, slots * rows, sizes.heads(geometry)
        assert g.experts is not None
        self.geometry, self.names = g, names
        self.watch: Callable[[Place], None] = unwatched
        self.qkv = gemms("TARGET_QKV", heads.qkv_width, g.hidden, most, scaled=True, biased=g.biases)
        self.attention = {
            window: Attention(heads, rows, window, config=sizes.fmha, sinks=g.sinks)
            for window in dict.fromkeys(map(g.window, range(g.layers)))
        }
        self.o = gemms("TARGET_O", g.hidden, heads.width, most, feeds_norm=True, biased=g.biases)
        self.route = Route(g.hidden, g.experts, most)
        self.gate_up = ExpertGateUp(g.intermediate, g.hidden, g.experts, most)
        self.down = ExpertDown(g.hidden, g.intermediate, g.experts, most)

    def kernels(self) -> Mapping[str, Kernel]:
        """Name → launcher, in stream order; `attention` sees all positions, `attention_N` a window of N."""
        windows = {f"attention_{w}" if w else "attention": kernel for w, kernel in self.attention.items()}
        return {
            "qkv": self.qkv,
            **windows,
            "o": self.o,
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
        ahead: Tensor,
    ) -> None:
        """Run layer `index` on the rows in `b.pre_norm`. Adds its result to `b.stream`, and leaves the input of the
        norm with weight `next_norm` [H] in `b.pre_norm`; `step` [1] is the number of the step, and `ahead` the weight
        of the product that comes next.
        """
        m, eps = b.mixture, self.geometry.rms_eps
        assert m is not None
        self.watch("input")
        with mark(self.names[0]):
            self.qkv(b.qkv, b.pre_norm, w.qkv, rows, eps=eps, bias=w.qkv_bias)
            self.attention[self.geometry.window(index)](
                *(b.attended, b.partial, pages.k[index], pages.v[index], b.qkv, at.rope, at.kv.block_table, at.length),
                rows,
                offset=at.offset,
                sinks=w.sinks,
                scales=pages.scales_of(index),
            )
            self.o(b.stream, b.attended, w.o, rows, norm=(b.pre_norm, w.post_norm), bias=w.o_bias)
        self.watch("o")
        with mark(self.names[1]):
            self.route(m.logits, m.x16, b.pre_norm, w.router, w.router_bias, rows, eps=eps, ahead=ahead)
            self.gate_up(m.act, m.x16, w.gate_up, m.logits, rows)
            self.down(
                *(b.stream, (b.pre_norm, next_norm), m.parts, m.finished, m.act, w.down, m.logits, rows),
                log=(m.touched, step, index),
            )
        self.watch("down")
