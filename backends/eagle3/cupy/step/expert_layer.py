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
        self.expert_gate_up, self.expert_down = gemms.experts(g, rows, partial=self.reduce is not None)

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
        self.route(rows, m, b.pre_norm, router=w.router, bias=w.router_bias, eps=self.eps)
        self.expert_gate_up(rows, m, w.gate_up, x=m.x16)
        stream, norm = self.sum_of(b, next_norm)
        pre_norm, norm_weight = norm or (None, None)
        self.expert_down(rows, m, w.down, at, pre_norm, stream=stream, norm_weight=norm_weight, layer=index)
        self.reduced(b, next_norm, rows)
