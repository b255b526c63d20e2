"""The draft's forward pass, and the pair's own drafter.

Each cycle extends the draft over the accepted rows with the target's features, then continues on the draft's own hidden
states.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from specgate.backends.eagle3.lib.kv.modes import KvMode
from specgate.backends.eagle3.lib.pair import DraftCheckpoint
from specgate.backends.eagle3.lib.trees.growing import Growth
from specgate.backends.eagle3.lib.weights import DraftWeights, Vocabulary, pack_draft
from specgate.backends.eagle3.reference.cache import KVCache, TreeRows
from specgate.backends.eagle3.reference.drafters import NOTHING
from specgate.backends.eagle3.reference.ops import check_finite, draft_argmax, matmul_rows, rms_norm, target_argmax
from specgate.backends.eagle3.reference.state import Pending, Slots
from specgate.backends.eagle3.reference.target import RopeTable, attend, feed_forward, rope_rows, rope_table, seen_by
from specgate.backends.eagle3.reference.tree import DraftTree, grow_tree
from specgate.checkpoints.geometry import DraftGeometry


def project_features(w: DraftWeights, geometry: DraftGeometry, features: Tensor) -> Tensor:
    """The target's auxiliary hidden states [B, T, n·H] → the draft's width [B, T, Hd]."""
    if w.concat_norm is not None:
        features = rms_norm(features, w.concat_norm, geometry.rms_eps)
    if w.chunk_norms:
        chunks = features.chunk(geometry.features, dim=-1)
        normed = [rms_norm(c, n, geometry.rms_eps) for c, n in zip(chunks, w.chunk_norms, strict=True)]
        features = torch.cat(normed, dim=-1)
    return matmul_rows(features, w.fc)


def draft_input(w: DraftWeights, geometry: DraftGeometry, tokens: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """The attention input [norm(embedding), norm(hidden)] [B, T, 2·Hd], and the residual around it [B, T, Hd]."""
    normed = rms_norm(hidden, w.feature_norm, geometry.rms_eps)
    embedded = rms_norm(w.embed[tokens], w.layer.input_norm, geometry.rms_eps)
    return torch.cat((embedded, normed), dim=-1), normed if geometry.norm_before_residual else hidden


class LayerOutput(NamedTuple):
    """Output of the decoder layer, each [B, T, Hd]: the two branches before they are added, and their sum."""

    attn_out: Tensor
    ffn_out: Tensor
    stream: Tensor


def draft_layer(
    w: DraftWeights,
    geometry: DraftGeometry,
    table: RopeTable,
    cache: KVCache,
    tokens: Tensor,
    hidden: Tensor,
    positions: Tensor,
    tree: TreeRows | None = None,
) -> LayerOutput:
    """Run `tokens` [B, T] with `hidden` [B, T, Hd] at `positions` [B, T], and write the cache; with `tree`, they are
    rows of a tree.

    The row at a position combines the *hidden state* of that position with the token one position ahead.
    """
    mixed_input, residual = draft_input(w, geometry, tokens, hidden)
    qkv = matmul_rows(mixed_input, w.layer.qkv)
    span = seen_by(positions, geometry.window, tree)
    rows = rope_rows(table, positions)
    mixed = attend(qkv, rows, cache.k[0], cache.v[0], positions, span, geometry.heads, geometry.kv_heads, tree)
    attn_out = matmul_rows(mixed, w.layer.o)
    middle = residual + attn_out
    ffn_out = feed_forward(w.layer, middle, geometry.rms_eps)
    return LayerOutput(attn_out, ffn_out, middle + ffn_out)


def draft_head(w: DraftWeights, geometry: DraftGeometry, stream: Tensor) -> tuple[Tensor, Tensor]:
    """(the final norm of `stream` [..., Hd], the logits [..., W] that the LM head makes of it)."""
    normed = rms_norm(stream, w.norm, geometry.rms_eps)
    return normed, matmul_rows(normed, w.lm_head)


def draft_token(w: DraftWeights, geometry: DraftGeometry, stream: Tensor) -> tuple[Tensor, Tensor]:
    """(the next draft token [B], the hidden state [B, Hd] that feeds the next draft step), from `stream` [B, Hd]."""
    normed, logits = draft_head(w, geometry, stream)
    check_finite(logits, "the draft's logits")  # else a broken draft would pass for one that is merely bad
    token = draft_argmax(logits, w.target_ids)
    return token, normed if geometry.norm_output else stream


def likeliest_tokens(
    w: DraftWeights, geometry: DraftGeometry, stream: Tensor, ranks: int
) -> tuple[Tensor, Tensor, Tensor]:
    """(the `ranks` likeliest draft tokens [B, F, ranks], the likeliest first; their log-probabilities, float32 [B, F,
    ranks]; the hidden states [B, F, Hd] that feed the next draft step), from `stream` [B, F, Hd].

    Probabilities are over the draft's vocabulary. The lowest entry wins an exact tie, as in `draft_token`.
    """
    normed, logits = draft_head(w, geometry, stream)
    check_finite(logits, "the draft's logits")
    log_probs = logits.float().log_softmax(dim=-1).clamp(max=0.0)  # a child must never be likelier than its parent
    left, entries = logits.clone(), list[Tensor]()
    for _ in range(ranks):
        entries.append(target_argmax(left))
        left.scatter_(-1, entries[-1][..., None], -torch.inf)
    best = torch.stack(entries, dim=-1)
    return w.target_ids[best], log_probs.gather(-1, best), normed if geometry.norm_output else stream


class EagleDrafter:
    """An EAGLE-3 draft with its KV cache."""

    def __init__(
        self,
        draft: DraftCheckpoint,
        target: Vocabulary,
        *,
        max_batch: int,
        max_positions: int,
        device: str,
        tree_rows: int = 0,
        kv: KvMode | None = None,
    ) -> None:
        """`tree_rows`: those that it may write behind `max_positions` while it grows a tree. `kv`: the format of its
        cache; None for the dtype that it computes in.
        """
        self.geometry = draft.geometry
        self.boundaries: Sequence[int] = draft.capture.boundaries
        self.weights, self.device = pack_draft(draft, target), device
        g, dtype = draft.geometry, target.embed.dtype
        self.table = rope_table(g.rope, max_positions, dtype, device)
        rows = max_positions + tree_rows
        self.cache = KVCache.allocate(1, max_batch, g.kv_heads, rows, g.head_dim, dtype, device, kv, tree_rows)
        self.start: Pending | None = None
        self.pending: Pending | None = None

    def prefill(self, slot: int, following: Tensor, features: Tensor | None, positions: Tensor) -> None:
        """Extend the draft over the prompt rows whose next token is known: all but the prompt's last."""
        rows = following.shape[1]
        if rows == 0:
            return
        assert features is not None
        self.take_in(slot, following, features[:, :rows], positions[:, :rows])

    def take_in(self, slot: int, following: Tensor, features: Tensor, positions: Tensor) -> Tensor:
        """Extend the draft over rows of a slot, the next tokens [1, T] of which are `following`. Returns its hidden
        states [T, Hd] there.
        """
        hidden = project_features(self.weights, self.geometry, features)
        check_finite(hidden, "the draft's hidden states")
        cache = self.cache.slots(slot, slot + 1)
        return draft_layer(self.weights, self.geometry, self.table, cache, following, hidden, positions).stream[0]

    def prefilled(self, features: Sequence[Tensor | None], first_token: Tensor, length: Tensor) -> None:
        rows = torch.cat([f for f in features if f is not None])
        self.start = Pending(rows, first_token[:, None], torch.ones_like(length), length - 1)

    def rewind(self) -> None:
        self.pending = self.start

    def chain(self, slots: Slots, k: int) -> Tensor:
        """Extend over the accepted rows, then take k − 1 recurrent steps on the draft's own hidden states."""
        assert self.pending is not None
        stream = self._extend(self.pending)
        token, hidden = draft_token(self.weights, self.geometry, stream)
        tokens, position = [token], self.pending.start + self.pending.count
        for _ in range(k - 1):
            stream = self.take_step(token[:, None], hidden[:, None], position[:, None])[:, 0]
            token, hidden = draft_token(self.weights, self.geometry, stream)
            tokens.append(token)
            position = position + 1
        return torch.stack(tokens, dim=1)

    def sure_chain(self, slots: Slots, k: int, confidence: float) -> tuple[Tensor, Tensor]:
        """As `chain`, but each slot's ends behind the first token up to which the product of the draft's probabilities
        falls below `confidence`.

        Returns the draft tokens [B, ≤ k], NOTHING behind the end of a chain, and the lengths [B] of the chains.
        """
        assert self.pending is not None
        hidden = self._extend(self.pending)[:, None]
        position, lengths = self.pending.start + self.pending.count, torch.zeros_like(self.pending.count)
        going, sure, tokens = slots.active, torch.ones(len(hidden), device=self.device), list[Tensor]()
        while len(tokens) < k and going.any():
            if tokens:
                hidden = self.take_step(tokens[-1][:, None], hidden, position[:, None])
                position = position + 1
            token, log_prob, hidden = likeliest_tokens(self.weights, self.geometry, hidden, 1)
            tokens.append(token[:, 0, 0])
            lengths += going
            sure = sure * log_prob[:, 0, 0].exp()
            going = going & (sure >= confidence)
        drafts = torch.stack(tokens, dim=1)
        return drafts.where(torch.arange(drafts.shape[1], device=self.device) < lengths[:, None], NOTHING), lengths

    def tree(self, growth: Growth) -> DraftTree:
        """Extend over the accepted rows, then run level by level on the nodes that `growth` names."""
        assert self.pending is not None
        stream = self._extend(self.pending)

        def head(rows: Tensor, ranks: int) -> tuple[Tensor, Tensor, Tensor]:
            return likeliest_tokens(self.weights, self.geometry, rows, ranks)

        return grow_tree(growth, stream, self.pending.start + self.pending.count, head, self.take_step)

    def verified(self, features: Tensor | None, tokens: Tensor, emitted: Tensor, start: Tensor) -> None:
        assert features is not None
        # A finished slot is still computed with the others. It stays at its position, and its rows have no meaning.
        self.pending = Pending(features, tokens, emitted.clamp(min=1), start)

    def _extend(self, pending: Pending) -> Tensor:
        """Rewrite the cache from the target's features.

        Returns the hidden state of each slot's last valid row, [B, Hd].
        """
        rows = torch.arange(pending.tokens.shape[1], device=self.device)
        hidden = project_features(self.weights, self.geometry, pending.features)
        check_finite(hidden, "the draft's hidden states")
        stream = self.take_step(pending.tokens, hidden, pending.start[:, None] + rows)
        return stream[torch.arange(len(stream), device=self.device), pending.count - 1]

    def take_step(self, tokens: Tensor, hidden: Tensor, positions: Tensor, tree: TreeRows | None = None) -> Tensor:
        """Run `tokens` [B, T] with `hidden` [B, T, Hd] at `positions` [B, T]; return the hidden states there."""
        cache = self.cache.slots(0, len(tokens))
        return draft_layer(self.weights, self.geometry, self.table, cache, tokens, hidden, positions, tree).stream
