"""Drafts: none, or the draft over what was accepted, and its chain of K tokens, K − 1 further steps on its output."""

from __future__ import annotations

from collections.abc import Mapping

from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.rows.launchers import DraftInput, DraftToken, FeatureRows
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows
from specgate.backends.eagle3.cupy.memory.buffers import Buffers
from specgate.backends.eagle3.cupy.memory.model import Draft, norm_of
from specgate.backends.eagle3.cupy.memory.sizes import Sizes
from specgate.backends.eagle3.cupy.step.choice import draft_choice
from specgate.backends.eagle3.cupy.step.layer import Layer, RowPositions
from specgate.backends.eagle3.cupy.stream import mark
from specgate.backends.eagle3.cupy.tuned.gemms import Gemms


class Drafting:
    """What a step drafts before it verifies: here nothing."""

    name = "none"
    branches = False
    """Drafts are a tree."""

    def kernels(self) -> Mapping[str, Kernel]:
        """Path → launcher, in stream order."""
        return {}

    def __call__(self, b: Buffers) -> None:
        """Leave the drafts of every active slot in `b.slots.drafts`."""


class Extension(Drafting):
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
        self.extension = Layer(g, sizes, slots, gemms, rows=rows, query_rows=1, ranks=draft.shard.ranks)

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
            self.feature_rows(rows, slots, d, out=d.packed, weight=self.draft.feature_norm, eps=eps)
            self.fc(d.hidden, d.packed, w.fc, rows)
            self.input(rows, slots, self.draft.input, d, stream=d.layer.stream, eps=eps)
        accepted = RowPositions(self.draft.rope, b.kv, slots.length, offset=-1, counts=slots.counts)
        newest = slots.rows(self.slots, 1)
        self.extension(d.layer, w.layer, w.norm, d.pages, 0, d.input, rows, newest, accepted)


class Chain(Extension):
    """The draft's forward passes as a page of kernel calls."""

    name = "chain"

    def __init__(self, draft: Draft, sizes: Sizes, slots: int, k: int, gemms: Gemms) -> None:
        super().__init__(draft, sizes, slots, k + 1, gemms)
        g, self.k = draft.geometry, k
        self.step = Layer(g, sizes, slots, gemms, rows=1, query_rows=1, ranks=draft.shard.ranks)
        self.lm_head = gemms("EAGLE3_LM_HEAD_SMALLVOC", g.draft_vocab, g.hidden, slots, scaled=True, chooses=True)
        self.choice = draft_choice(draft, sizes, slots)
        self.token = DraftToken(g.hidden, len(draft.target_ids), g.norm_output, g.norm_before_residual, sizes.max_rows)

    def kernels(self) -> Mapping[str, Kernel]:
        """Path → launcher, in stream order. Those of `step` are there for K = 1, too, which never runs them."""
        return {
            **self.kernels_of_extension(),
            "lm_head": self.lm_head,
            **self.choice.kernels(),
            "token": self.token,
            **{f"step.{name}": kernel for name, kernel in self.step.kernels().items()},
        }

    def __call__(self, b: Buffers) -> None:
        """Leave K drafts per active slot in `b.slots.drafts`."""
        assert b.draft is not None
        d, w, slots = b.draft, self.draft.weights, b.slots
        rows = slots.rows(self.slots, 1)
        self.extend(b)
        for j in range(self.k):
            if j:
                at = RowPositions(self.draft.rope, b.kv, slots.length, offset=j - 1)
                self.step(d.layer, w.layer, w.norm, d.pages, 0, d.input, rows, rows, at)
            self._choose(b, rows, j)

    def _choose(self, b: Buffers, rows: Rows, index: int) -> None:
        """Draft token `index` behind `rows`, and the input of the step after it."""
        assert b.draft is not None
        d, w, eps, ids = b.draft, self.draft.weights, self.draft.geometry.rms_eps, self.draft.target_ids
        logits, here = self.choice.logits(b, index), d.layer
        with mark("EAGLE_DRAFT_LM_HEAD"):
            self.lm_head(logits, here.pre_norm, w.lm_head, rows, eps=eps, choices=d.choices)
            self.choice(logits, d, b, rows, self.draft, offset=index)
            groups = rows, here, here.pre_norm, self.draft.input, b.slots
            following = d.input if index + 1 < self.k else None
            self.token(*groups, input=following, choices=d.choices, target_ids=ids, index=index, eps=eps)
