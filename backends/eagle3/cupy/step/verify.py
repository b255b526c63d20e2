"""One pass of the target over the last token of each slot and the drafts after it, of which the baseline has none."""

from __future__ import annotations

from collections.abc import Mapping

from specgate.backends.eagle3.cupy.kernels.attention.attention import Attention, TreeNodes
from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.partial.launchers import AcceptReplayed, WideAttention
from specgate.backends.eagle3.cupy.kernels.peers.launchers import CombineChoices
from specgate.backends.eagle3.cupy.kernels.penalties.launchers import CountTokens
from specgate.backends.eagle3.cupy.kernels.rejection.launchers import DraftedRows
from specgate.backends.eagle3.cupy.kernels.rows.launchers import EmbedRows, FeatureCapture, Replay
from specgate.backends.eagle3.cupy.kernels.state.launchers import Accept, AcceptForced
from specgate.backends.eagle3.cupy.kernels.state.slots import Fault, Rows
from specgate.backends.eagle3.cupy.kernels.trees.launchers import TreeSettle
from specgate.backends.eagle3.cupy.memory.buffers import Buffers, partial_attention
from specgate.backends.eagle3.cupy.memory.model import Draft, Target
from specgate.backends.eagle3.cupy.memory.sampling import penalises, rejects
from specgate.backends.eagle3.cupy.memory.sizes import Sizes
from specgate.backends.eagle3.cupy.step.expert_layer import ExpertLayer
from specgate.backends.eagle3.cupy.step.layer import Layer, RowPositions
from specgate.backends.eagle3.cupy.step.partial import FULL, PARTIAL, PLAIN, Kind, Selection
from specgate.backends.eagle3.cupy.step.token_draw import Rejection, TokenDraw
from specgate.backends.eagle3.cupy.stream import mark
from specgate.backends.eagle3.cupy.tuned.gemms import Gemms
from specgate.backends.eagle3.lib.weights import ExpertLayerWeights, LayerWeights

NAMES = ("TARGET_ATTENTION_FMHA", "TARGET_FFN")


class Verify:
    """The target's forward pass as a page of kernel calls. Its residual streams at the draft's boundaries are captured
    for it; boundary i lies before layer i.

    With `tree`, rows are the nodes of a draft tree. `kind`: over which part of the cache, and behind which rows.
    """

    def __init__(
        self,
        target: Target,
        sizes: Sizes,
        slots: int,
        rows_per_slot: int,
        gemms: Gemms,
        draft: Draft | None = None,
        *,
        tree: bool = False,
        kind: Kind = PLAIN,
        k: int | None = None,
    ) -> None:
        """`draft`: whose features are captured, and whose drafts are verified where there are several rows per slot.
        `k`: drafts per slot; None: as many as rows behind the first.

        Raises ValueError for what a target that is split among GPUs cannot do: trees and sampling.
        """
        g, rows = target.geometry, slots * rows_per_slot
        if target.shard.ranks > 1 and (tree or sizes.sampling):
            raise ValueError("a target that is split among GPUs decodes greedy chains")
        drafts, heads = rows_per_slot - 1 if k is None else k, sizes.heads(g)
        self.kind: Kind = kind
        replay = Replay(drafts, sizes.positions) if kind == FULL else None
        attention: Attention | WideAttention | None = None
        if kind == FULL:
            attention = WideAttention(heads, rows_per_slot, sizes.max_rows, sizes.fmha)
        elif kind == PARTIAL:
            attention = partial_attention(g, sizes, drafts)
        self.selection = Selection(heads, sizes, drafts) if kind == FULL else None
        depth = sizes.tree.depth if sizes.tree and tree else 0
        nodes = TreeNodes(0, sizes.max_rows, depth) if depth else None
        self.target, self.draft, self.boundaries = target, draft, draft.boundaries if draft else ()
        self.count = CountTokens(g.vocab, sizes.max_rows) if penalises(sizes.sampling) else None
        self.embed = EmbedRows(g.hidden, rows_per_slot, sizes.max_rows, replay)
        self.capture = FeatureCapture(g.hidden, max(1, len(self.boundaries)), rows_per_slot, sizes.max_rows, replay)
        ranks = target.shard.ranks
        self.layer = (
            Layer(
                *(g, sizes, slots, gemms, "TARGET"),
                rows=rows_per_slot,
                query_rows=rows_per_slot,
                names=NAMES,
                tree=nodes,
                ranks=ranks,
                attention=attention,
            )
            if g.experts is None
            else ExpertLayer(g, sizes, slots, gemms, rows=rows_per_slot, names=NAMES, tree=nodes, ranks=ranks)
        )
        self.lm_head = gemms("TARGET_LM_HEAD", g.vocab, g.hidden, rows, scaled=True, chooses=True)
        self.combine = (
            CombineChoices(g.vocab, rows_per_slot, rows, sizes.max_rows, ranks, sizes.rows) if ranks > 1 else None
        )
        sampling = sizes.sampling
        self.rejection = (
            Rejection(sampling, DraftedRows(g.vocab, draft.geometry.draft_vocab, drafts, sizes.slots, sizes.max_rows))
            if sampling and rejects(sampling) and draft and drafts
            else None
        )
        self.draw = TokenDraw(sampling, g.vocab, sizes.max_rows, races=self.rejection is None) if sampling else None
        width = len(self.boundaries) * g.hidden
        self.accept: TreeSettle | AcceptReplayed | AcceptForced | Accept
        if depth:
            self.accept = TreeSettle(heads, g.layers, sizes.blocks, width, rows_per_slot, depth, sizes.max_rows)
        elif kind == FULL:
            of_text = rows_per_slot, sizes.max_rows, sizes.positions
            self.accept = AcceptReplayed(sizes.kept_of(drafts), drafts, *of_text)
        elif sizes.forced and drafts:
            self.accept = AcceptForced(sizes.slots, rows_per_slot, sizes.max_rows)
        else:
            self.accept = Accept(rows_per_slot, sizes.max_rows)

    def kernels(self) -> Mapping[str, Kernel]:
        """Path → launcher, in stream order. `capture` is there without boundaries, too, where it never runs."""
        return {
            **({"draw.count": self.count} if self.count else {}),
            "embed": self.embed,
            "capture": self.capture,
            **{f"layer.{name}": kernel for name, kernel in self.layer.kernels().items()},
            **(self.selection.kernels() if self.selection else {}),
            "lm_head": self.lm_head,
            **({"combine": self.combine} if self.combine else {}),
            **{f"draw.{name}": kernel for name, kernel in (self.draw.kernels() if self.draw else {}).items()},
            **{f"draw.{name}": kernel for name, kernel in (self.rejection.kernels() if self.rejection else {}).items()},
            "accept": self.accept,
        }

    def __call__(self, b: Buffers, rows: Rows) -> None:
        """Leave logits and choices of every row, its keys and values, and its captured features."""
        t, w = b.target.layer, self.target.weights
        norms = [*(layer.input_norm for layer in w.layers), w.norm]
        nodes = b.tree.in_target if isinstance(self.accept, TreeSettle) and b.tree else None
        part = None if self.kind == PLAIN else b.partial
        at = RowPositions(self.target.rope, b.kv, b.slots.length, nodes=nodes, part=part)
        replayed = b.partial.verified if self.kind == FULL and b.partial else None
        if self.count:
            assert b.sampling is not None
            self.count(b.sampling.history, b.slots, rows)
        self.embed(t.stream, t.pre_norm, w.embed, norms[0], b.slots, rows, replayed)
        for i, layer in enumerate(w.layers):
            self._capture(b, rows, i)
            if isinstance(self.layer, Layer):
                assert isinstance(layer, LayerWeights)
                self.layer(t, layer, norms[i + 1], b.target.pages, i, t.pre_norm, rows, rows, at)
            else:
                assert isinstance(layer, ExpertLayerWeights)
                self.layer(t, layer, norms[i + 1], b.target.pages, i, rows, at, b.slots.step)
        self._capture(b, rows, len(w.layers))
        if self.selection:
            self.selection(b, rows)
        self.head(b, rows)

    def head(self, b: Buffers, rows: Rows) -> None:
        """Logits and choices of the rows in `b.target.layer.pre_norm`, which the LM head norms.

        Choices are greedy, or drawn where the sizes say so: of each row, or by rejection of the slot's drafts. Then the
        logits have their bias and penalties.
        """
        t, w = b.target.layer, self.target.weights
        eps = self.target.geometry.rms_eps
        self.lm_head(t.logits, t.pre_norm, w.lm_head, rows, eps=eps, choices=b.target.choices)
        if self.combine:
            assert t.mailboxes is not None
            self.combine(b.target.choices, t.mailboxes, b.slots, rows)
        if self.draw:
            assert b.sampling is not None
            with mark("TARGET_DRAW"):
                self.draw(t.logits, b.target.choices, b.sampling, b.slots, rows)
                if self.rejection:
                    assert self.draft is not None
                    self.rejection(t.logits, b.target.choices, self.draft.columns, b.sampling, b.slots, rows)

    def settle(self, b: Buffers, rows: Rows) -> None:
        """Decide how many drafts of each slot are accepted. Of a tree, put the accepted path where a chain would be."""
        if isinstance(self.accept, Accept):
            self.accept(b.target.choices, b.slots, rows)
            return
        if isinstance(self.accept, AcceptForced):
            assert b.forced is not None
            self.accept(b.target.choices, b.forced, b.slots, rows)
            return
        if isinstance(self.accept, AcceptReplayed):
            assert b.partial is not None
            p = b.partial
            self.accept(b.target.choices, p.verified, p.dropped, p.bounded, p.overruled, b.slots, rows)
            return
        assert b.tree is not None and b.draft is not None
        tree, pages = b.tree, b.target.pages
        self.accept(
            *(pages.k, pages.v, b.draft.features, tree.path, tree.readers, b.target.choices),
            *(tree.masks, tree.parents, b.kv.block_table, b.slots, rows),
            (pages.scales, tree.scales),
        )

    def choices(self, b: Buffers, count: int) -> tuple[tuple[int, ...], Fault]:
        """Read and clear the choices of `count` rows, one for each active slot. Never used within a decode run."""
        slots = b.slots
        assert isinstance(self.accept, Accept)
        self.accept(b.target.choices, slots, slots.rows(count, 1))
        listed = slots.active[: int(slots.active_count)].long()
        return tuple(slots.target_tokens[listed, 0].tolist()), Fault(int(slots.fault))

    def _capture(self, b: Buffers, rows: Rows, boundary: int) -> None:
        begins = (b.slots.length, b.partial.verified) if self.kind == FULL and b.partial else None
        for chunk, at in enumerate(self.boundaries):
            if at == boundary:
                assert b.draft is not None
                self.capture(b.draft.features, b.target.layer.stream, rows, chunk, begins)
