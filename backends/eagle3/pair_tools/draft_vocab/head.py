"""The LM head of a draft with another vocabulary: a row per chosen token, gathered from the heads that are there."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specgate.backends.eagle3.lib.pair import DraftFiles, TargetFiles
from specgate.backends.eagle3.pair_tools.export.opened import target_head
from specgate.backends.eagle3.pair_tools.shards import LazyTensor, lazy_tensors
from specgate.errors import UsageError

HEAD = "lm_head.weight"


@dataclass(frozen=True, slots=True)
class Heads:
    """The head of the draft, which knows the ids `known` int64 [W] in the order of its rows; None where it uses the
    target's. `target` is the target's, one row per token.
    """

    own: LazyTensor | None
    known: Tensor
    target: LazyTensor

    @classmethod
    def of(cls, target: TargetFiles, draft: DraftFiles) -> Heads:
        size = draft.geometry.draft_vocab
        if not draft.geometry.own_lm_head:
            return cls(None, torch.arange(0), target_head(target))
        name = draft.names[HEAD]
        known = torch.arange(size) if draft.d2t is None else torch.arange(size) + draft.d2t
        return cls(lazy_tensors(draft.source, [name])[name], known, target_head(target))

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the new head."""
        return (self.own or self.target).dtype

    def missing(self, ids: Tensor) -> int:
        """Return the number of `ids` that the draft has no row for."""
        return int((~torch.isin(ids, self.known)).sum())

    def rows(self, ids: Tensor) -> LazyTensor:
        """The rows of the target tokens `ids` int64 [n], in their order, [n, hidden]: bit for bit those of the draft
        where it has them, else the target's, in which training begins too.
        """
        return LazyTensor((len(ids), (self.own or self.target).shape[1]), self.dtype, lambda: self._gathered(ids))

    def _gathered(self, ids: Tensor) -> Tensor:
        if self.own is None:
            return self.target.read()[ids]
        row_of = torch.full((self.target.shape[0],), -1).index_copy(0, self.known, torch.arange(len(self.known)))
        rows = row_of[ids]
        gathered = self.own.read()[rows.clamp(min=0)]
        if (absent := rows < 0).any():
            gathered[absent] = self.target.read()[ids[absent]].to(gathered.dtype)
        return gathered


def require_rows(draft: DraftFiles, target: TargetFiles, target_rows: bool) -> None:
    """Raise UsageError where rows would have to come from the target's head and may not, or cannot."""
    where = draft.config.file.parent
    if not draft.geometry.own_lm_head and not target_rows:
        raise UsageError(
            f"{where}: the draft has no lm_head.weight of its own: it uses the target's",
            hint="--target-rows takes the rows from the target's LM head",
        )
    if target_rows and draft.geometry.hidden != target.geometry.hidden:
        raise UsageError(
            f"--target-rows: {where}: hidden_size = {draft.geometry.hidden}, the target has {target.geometry.hidden}",
            hint="rows of the target's LM head do not fit this draft: leave it out",
        )
