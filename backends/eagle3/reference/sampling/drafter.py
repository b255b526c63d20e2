"""The pair's draft, drawing from its distribution in the place of taking its best token."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from specgate.backends.eagle3.lib.kv.modes import KvMode
from specgate.backends.eagle3.lib.pair import DraftCheckpoint
from specgate.backends.eagle3.lib.weights import Vocabulary
from specgate.backends.eagle3.reference.draft import draft_head
from specgate.backends.eagle3.reference.eagle import EagleDrafter
from specgate.backends.eagle3.reference.ops import check_finite
from specgate.backends.eagle3.reference.sampling.sampler import Sampler, rows_of
from specgate.backends.eagle3.reference.state import Slots
from specgate.sampling.coupling import draft_sample
from specgate.sampling.distributions import over_target
from specgate.sampling.keys import Floats, Keys
from specgate.sampling.target import point_mass, softmax


class SampledDrafter(EagleDrafter):
    """An EAGLE-3 draft that draws at the target's temperature. It applies none of the target's filters and penalties:
    tokens that these rule out are rejected.

    `proposed` [B, K, V]: the distributions that the last chain was drawn from, over the target's vocabulary.
    """

    def __init__(
        self,
        draft: DraftCheckpoint,
        target: Vocabulary,
        sampler: Sampler,
        *,
        max_batch: int,
        max_positions: int,
        device: str,
        kv: KvMode | None = None,
    ) -> None:
        super().__init__(draft, target, max_batch=max_batch, max_positions=max_positions, device=device, kv=kv)
        self.sampler, self.vocabulary = sampler, len(target.embed)
        self.target_ids = self.weights.target_ids.cpu().numpy()
        self.proposed: Floats = np.empty((0, 0, 0))

    def chain(self, slots: Slots, k: int) -> Tensor:
        assert self.pending is not None
        keys = self.sampler.keys((slots.length + 1).tolist(), range(len(slots.length)))
        token, hidden, distribution = self._draw(self._extend(self.pending), keys)
        tokens, proposed, position = [token], [distribution], self.pending.start + self.pending.count
        for i in range(1, k):
            stream = self._step(token[:, None], hidden[:, None], position[:, None])[:, 0]
            token, hidden, distribution = self._draw(stream, keys.after(i))
            tokens.append(token)
            proposed.append(distribution)
            position = position + 1
        self.proposed = np.stack(proposed, axis=1)
        return torch.stack(tokens, dim=1)

    def _draw(self, stream: Tensor, keys: Keys) -> tuple[Tensor, Tensor, Floats]:
        """(draft tokens [B], the hidden states [B, Hd] that feed the next step, their distributions [B, V])."""
        normed, logits = draft_head(self.weights, self.geometry, stream)
        check_finite(logits, "the draft's logits")
        rows, sampling = rows_of(logits.float()), self.sampler.sampling
        shares = np.stack([self._share(row) for row in rows])
        spread = over_target(shares, self.target_ids, self.vocabulary)
        tokens = draft_sample(spread, keys, coupled=sampling.method == "coupled")
        hidden = normed if self.geometry.norm_output else stream
        return torch.from_numpy(tokens).to(stream.device), hidden, spread

    def _share(self, logits: Floats) -> Floats:
        """The draft's probabilities [W] of its own tokens, from `logits` [W]."""
        temperature = self.sampler.sampling.temperature
        if not temperature:
            return point_mass(int(logits.argmax()), len(logits))
        return softmax((logits - logits.max()) / temperature)
