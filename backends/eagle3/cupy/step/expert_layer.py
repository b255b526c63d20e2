"""Decoder layers with a mixture of experts, attention sinks, and biases, as gpt-oss has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.experts.launchers import Route
from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows
from specgate.backends.eagle3.cupy.memory.buffers import LayerBuffers
from specgate.backends.eagle3.cupy.memory.model import LayerWeights
from specgate.backends.eagle3.cupy.step.layer import AnyWeights, Layer, RowPositions
from specgate.backends.eagle3.cupy.tuned.gemms import Gemms


class ExpertLayer(Layer):
    """The norm before the router, too, has no kernel of its own: the router divides by the root mean square, and leaves
    the normed rows for the experts.

    Where several GPUs share the target, each has its part of every expert's width. All of them make the same router
    logits of the same rows, and so choose the same experts.
    """

    joins: ClassVar = True

    def products(self, g: Any, gemms: Gemms, whose: str, rows: int) -> None:
        self.route = Route(g.hidden, g.experts, rows)
        self.expert_gate_up = gemms.expert_gate_up(g, rows)
        self.expert_down = gemms.expert_down(g, rows, partial=self.reduce is not None)

    def feed_forward_kernels(self) -> Mapping[str, Kernel]:
        return {"route": self.route, "expert_gate_up": self.expert_gate_up, "expert_down": self.expert_down}

    def bias_of(self, w: AnyWeights, product: Literal["qkv", "o"]) -> Tensor | None:
        assert not isinstance(w, LayerWeights)
        return w.qkv_bias if product == "qkv" else w.o_bias

    def of_heads(self, b: LayerBuffers, w: AnyWeights) -> dict[str, Any]:
        assert not isinstance(w, LayerWeights)
        return {"sinks": w.sinks}

    def feed_forward(
        self, b: LayerBuffers, w: Any, next_norm: Tensor, index: int, rows: Rows, at: RowPositions
    ) -> None:
        m = b.mixture
        assert m is not None
        self.route(m.logits, m.x16, b.pre_norm, w.router, w.router_bias, rows, eps=self.eps)
        self.expert_gate_up(m.act, m.x16, w.gate_up, m.logits, rows)
        out, norm = self.sum_of(b, next_norm)
        assert at.step is not None
        log = m.touched, at.step, index
        self.expert_down(out, norm, m.parts, m.finished, m.act, w.down, m.logits, rows, log=log)
        self.reduced(b, next_norm, rows)
