"""The pair's own drafter.

Each cycle extends the draft over the accepted rows with the target's features, then continues on the draft's own hidden
states.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specgate.backends.eagle3.lib.kv.modes import KvMode
from specgate.backends.eagle3.lib.pair import DraftCheckpoint
from specgate.backends.eagle3.lib.trees.growing import Growth
from specgate.backends.eagle3.lib.weights import Vocabulary, pack_draft
from specgate.backends.eagle3.reference.cache import KVCache, TreeRows
from specgate.backends.eagle3.reference.draft import draft_layer, draft_token, likeliest_tokens, project_features
from specgate.backends.eagle3.reference.drafters import NOTHING
from specgate.backends.eagle3.reference.ops import check_finite
from specgate.backends.eagle3.reference.state import Pending, Slots
from specgate.backends.eagle3.reference.target import rope_table
from specgate.backends.eagle3.reference.tree import DraftTree, grow_tree


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
        self.cache = KVCache.allocate(1, max_batch, g.kv_heads, rows, g.head_dim, dtype, device, kv)
        self.start: Pending | None = None
        self.pending: Pending | None = None

    def prefill(self, slot: int, following: Tensor, features: Tensor | None, positions: Tensor) -> None:
        """Extend the draft over the prompt rows whose next token is known: all but the prompt's last."""
        rows = following.shape[1]
        if rows == 0:
            return
        assert features is not None
        hidden = project_features(self.weights, self.geometry, features[:, :rows])
        check_finite(hidden, "the draft's hidden states")
        cache = self.cache.slots(slot, slot + 1)
        draft_layer(self.weights, self.geometry, self.table, cache, following, hidden, positions[:, :rows])

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
            stream = self._step(token[:, None], hidden[:, None], position[:, None])[:, 0]
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
                hidden = self._step(tokens[-1][:, None], hidden, position[:, None])
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

        return grow_tree(growth, stream, self.pending.start + self.pending.count, head, self._step)

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
        stream = self._step(pending.tokens, hidden, pending.start[:, None] + rows)
        return stream[torch.arange(len(stream), device=self.device), pending.count - 1]

    def _step(self, tokens: Tensor, hidden: Tensor, positions: Tensor, tree: TreeRows | None = None) -> Tensor:
        cache = self.cache.slots(0, len(tokens))
        return draft_layer(self.weights, self.geometry, self.table, cache, tokens, hidden, positions, tree).stream
