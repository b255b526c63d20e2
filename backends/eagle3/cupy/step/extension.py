"""The draft over what was accepted: where every draft begins, a chain or a tree."""

from __future__ import annotations

from collections.abc import Mapping

from specgate.backends.eagle3.cupy.kernels.attention.attention import TreeNodes
from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.rows.launchers import DraftInput, FeatureRows
from specgate.backends.eagle3.cupy.memory.buffers import Buffers
from specgate.backends.eagle3.cupy.memory.model import Draft, norm_of
from specgate.backends.eagle3.cupy.memory.sizes import Sizes
from specgate.backends.eagle3.cupy.step.layer import Layer, RowPositions
from specgate.backends.eagle3.cupy.stream import mark
from specgate.backends.eagle3.cupy.tuned.gemms import Gemms
from specgate.checkpoints.geometry import DraftGeometry

NAMES = ("EAGLE_DRAFT_ATTENTION_FMHA", "EAGLE_DRAFT_FFN")


def draft_layer(
    g: DraftGeometry,
    sizes: Sizes,
    slots: int,
    gemms: Gemms,
    *,
    rows: int,
    query_rows: int,
    tree: TreeNodes | None = None,
    ranks: int = 1,
) -> Layer:
    """The draft's layer over `rows` rows per slot, of which the newest `query_rows` go on. `ranks`: as of `Layer`."""
    return Layer(
        *(g, sizes, slots, gemms, "EAGLE3"),
        rows=rows,
        query_rows=query_rows,
        names=NAMES,
        input_width=2 * g.hidden,
        window=g.window,
        tree=tree,
        ranks=ranks,
    )


class Extension:
    """Begin of a draft's forward passes: the extension, after which its newest row goes on.

    It is always over as many rows per slot as a step may emit. Only the accepted ones fill the cache, and only the
    newest one is a query row and goes on. So the host need not know how many were accepted.
    """

    def __init__(self, draft: Draft, sizes: Sizes, slots: int, rows: int, gemms: Gemms) -> None:
        g = draft.geometry
        self.draft, self.slots, self.rows = draft, slots, rows
        self.feature_rows = FeatureRows(g.target_hidden, g.features, norm_of(g), rows, sizes.max_rows)
        self.fc = gemms("EAGLE3_FC", g.hidden, g.features * g.target_hidden, slots * rows)
        self.input = DraftInput(g.hidden, g.norm_before_residual, rows, sizes.max_rows)
        self.extension = draft_layer(g, sizes, slots, gemms, rows=rows, query_rows=1, ranks=draft.shard.ranks)

    def kernels_of_extension(self) -> Mapping[str, Kernel]:
        """Path → launcher, in stream order."""
        return {
            "feature_rows": self.feature_rows,
            "fc": self.fc,
            "input": self.input,
            **{f"extension.{name}": kernel for name, kernel in self.extension.kernels().items()},
        }

    def extend(self, b: Buffers) -> None:
        """Leave the newest row of every active slot in the draft's stream, and what its LM head norms."""
        assert b.draft is not None
        d, w, slots, eps = b.draft, self.draft.weights, b.slots, self.draft.geometry.rms_eps
        rows = slots.rows(self.slots, self.rows)
        with mark("EAGLE_DRAFT_FEATURES"):
            self.feature_rows(d.packed, d.features, self.draft.feature_norm, slots, rows, eps)
            self.fc(d.hidden, d.packed, w.fc, rows)
            self.input(d.input, d.layer.stream, d.hidden, self.draft.input, slots, rows, eps)
        accepted = RowPositions(self.draft.rope, b.kv, slots.length, offset=-1, counts=slots.counts)
        newest = slots.rows(self.slots, 1)
        self.extension(d.layer, w.layer, w.norm, d.pages, 0, d.input, rows, newest, accepted)
