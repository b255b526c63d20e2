"""One pass of the target over the last token of each slot and the drafts after it, of which the baseline has none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext

from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.rows.launchers import EmbedRows, FeatureCapture
from specgate.backends.eagle3.cupy.kernels.state.slots import Fault, Rows
from specgate.backends.eagle3.cupy.memory.buffers import Buffers
from specgate.backends.eagle3.cupy.memory.model import Draft, Target
from specgate.backends.eagle3.cupy.memory.sizes import Sizes
from specgate.backends.eagle3.cupy.step.choice import target_choice
from specgate.backends.eagle3.cupy.step.expert_layer import ExpertLayer
from specgate.backends.eagle3.cupy.step.layer import AnyWeights, Layer
from specgate.backends.eagle3.cupy.step.verification import Verification
from specgate.backends.eagle3.cupy.stream import mark
from specgate.backends.eagle3.cupy.tuned.gemms import Gemms
from specgate.checkpoints.geometry import TargetGeometry


def layer_kind(g: TargetGeometry) -> type[Layer]:
    """Return the kind of a target's layers."""
    return Layer if g.experts is None else ExpertLayer


class Verify:
    """The target's forward pass as a page of kernel calls. Its residual streams at the draft's boundaries are captured
    for it; boundary i lies before layer i.
    """

    def __init__(
        self, target: Target, sizes: Sizes, slots: int, gemms: Gemms, way: Verification, draft: Draft | None = None
    ) -> None:
        """`draft`: whose features are captured, and whose drafts are verified where there are several rows per slot.

        Raises ValueError for sampling of a target that is split among GPUs.
        """
        g, ranks, per_slot, most = target.geometry, target.shard.ranks, way.rows, sizes.max_rows
        if ranks > 1 and sizes.sampling:
            raise ValueError("a target that is split among GPUs decodes greedily")
        self.target, self.way, self.draft, self.boundaries = target, way, draft, draft.boundaries if draft else ()
        self.embed = EmbedRows(g.hidden, per_slot, most, way.replay)
        self.capture = FeatureCapture(g.hidden, max(1, len(self.boundaries)), per_slot, most, way.replay)
        self.layer = layer_kind(g)(
            *(g, sizes, slots, gemms),
            rows=per_slot,
            query_rows=per_slot,
            tree=way.nodes,
            ranks=ranks,
            attention=way.attention,
        )
        self.lm_head = gemms("TARGET_LM_HEAD", g.vocab, g.hidden, slots * per_slot, scaled=True, chooses=True)
        self.choice = target_choice(target, draft, sizes, slots, per_slot, tree=way.nodes is not None)
        self.accept, self.settle = way.settling(len(self.boundaries) * g.hidden)

    def kernels(self) -> Mapping[str, Kernel]:
        """Path → launcher, in stream order. `capture` is there without boundaries, too, where it never runs."""
        return {
            **self.choice.opening(),
            "embed": self.embed,
            "capture": self.capture,
            **{f"layer.{name}": kernel for name, kernel in self.layer.kernels().items()},
            **self.way.kernels(),
            "lm_head": self.lm_head,
            **self.choice.kernels(),
            "accept": self.accept,
        }

    def __call__(self, b: Buffers, rows: Rows) -> None:
        """Leave logits and choices of every row, its keys and values, and its captured features."""
        t, w = b.target.layer, self.target.weights
        norms = [*(layer.input_norm for layer in w.layers), w.norm]
        at = self.way.positions(b)
        self.choice.begin(b, rows)
        self.embed(rows, t.pre_norm, b.slots, b.partial, x=t.stream, embedding=w.embed, norm_weight=norms[0])
        layers: Sequence[AnyWeights] = w.layers
        for i, layer in enumerate(layers):
            self._capture(b, rows, i)
            self.layer(t, layer, norms[i + 1], b.target.pages, i, t.pre_norm, rows, rows, at)
        self._capture(b, rows, len(w.layers))
        self.way.finish(b, rows)
        self.head(b, rows)

    def head(self, b: Buffers, rows: Rows) -> None:
        """Logits and choices of the rows in `b.target.layer.pre_norm`, which the LM head norms.

        Choices are greedy, or drawn where the sizes say so: of each row, or by rejection of the slot's drafts. Then the
        logits have their bias and penalties.
        """
        t, choices, eps = b.target.layer, b.target.choices, self.target.geometry.rms_eps
        self.lm_head(t.logits, t.pre_norm, self.target.weights.lm_head, rows, eps=eps, choices=choices)
        with mark("TARGET_DRAW") if self.choice.draw else nullcontext():
            self.choice(t.logits, b.target, b, rows, self.draft)

    def choices(self, b: Buffers, count: int) -> tuple[tuple[int, ...], Fault]:
        """Read and clear the choices of `count` rows, one for each active slot. Never used within a decode run."""
        slots = b.slots
        self.settle(b, slots.rows(count, 1))
        listed = slots.active[: int(slots.active_count)].long()
        return tuple(slots.target_tokens[listed, 0].tolist()), Fault(int(slots.fault))

    def _capture(self, b: Buffers, rows: Rows, boundary: int) -> None:
        for chunk, at in enumerate(self.boundaries):
            if at == boundary:
                self.capture(rows, b.slots, b.draft, b.partial, x=b.target.layer.stream, chunk=chunk)
