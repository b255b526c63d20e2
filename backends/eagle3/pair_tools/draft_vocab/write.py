"""Write a draft whose head has another vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from specgate.backends.eagle3.lib.hf_write import write_config
from specgate.backends.eagle3.lib.pair import DraftFiles, TargetFiles, open_draft
from specgate.backends.eagle3.pair_tools.export.hf import copy_files
from specgate.backends.eagle3.pair_tools.export.opened import in_memory, target_head
from specgate.backends.eagle3.pair_tools.export.room import existing, require_disk, writing
from specgate.backends.eagle3.pair_tools.shards import LazyTensor, lazy_tensors, write_shards
from specgate.backends.eagle3.pair_tools.train.draft import offsets_and_mask
from specgate.backends.eagle3.pairs.gguf_convert import write_json
from specgate.backends.eagle3.pairs.whole_folder import appearing
from specgate.checkpoints.geometry import TargetGeometry
from specgate.checkpoints.hf_keys import PLANTED, Keys
from specgate.checkpoints.planted import digest
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


RECORD: Final = "DRAFT_VOCAB.json"
SOURCE_CARD: Final = "README.source.md"
OF_ACCEPTANCE: Final = ("asked", "predicted_acceptance_length", "measured")
"""What a planted draft's config says of its acceptance, which holds for its own vocabulary only."""


@dataclass(frozen=True, slots=True)
class Papers:
    """Files beside the weights. `record`: `DRAFT_VOCAB.json`. `card`: `README.md`; the card of the source draft stays
    beside it as `README.source.md`.
    """

    record: Mapping[str, object]
    card: str


def refuse_occupied(out: Path) -> None:
    """Raise UsageError where `out` is no folder, or is not empty."""
    nearest = existing(out)
    if not nearest.is_dir():
        raise UsageError(f"--out {out}: {nearest} is no folder", hint="name a new folder")
    if nearest == out and any(out.iterdir()):
        raise UsageError(f"--out {out}: not empty", hint="name a new folder")


def write_draft(
    out: Path, target: TargetGeometry, draft: DraftFiles, heads: Heads, ids: Tensor, papers: Papers
) -> None:
    """Write the draft with the vocabulary `ids` int64 [W], ascending. The folder appears whole or not at all.

    Raises UsageError for a folder that is not empty, EnvironmentRefused where it cannot be written.
    """
    refuse_occupied(out)
    tensors = tensors_of(draft, heads, ids)
    require_disk(out, sum(tensor.nbytes for tensor in tensors.values()))
    source = draft.config.file.parent
    with writing(out), appearing(out) as folder:
        write_config(folder, config_of(draft.config, len(ids)))
        write_shards(folder, tensors)
        open_draft(folder, target)  # what was written must be a draft again
        copy_files(source, folder, ("LICENSE*", "NOTICE*"))
        (folder / "README.md").write_text(papers.card, encoding="utf-8")
        if (source / "README.md").is_file():
            (folder / SOURCE_CARD).write_bytes((source / "README.md").read_bytes())
        write_json(folder / RECORD, dict(papers.record))


def tensors_of(draft: DraftFiles, heads: Heads, ids: Tensor) -> dict[str, LazyTensor]:
    """The tensors by the names that they have in the draft's files."""
    names = [draft.names[name] for name in draft.weights if name != HEAD]
    d2t, t2d = offsets_and_mask(ids, draft.geometry.vocab)
    return lazy_tensors(draft.source, names) | {
        draft.names.get(HEAD, HEAD): heads.rows(ids),
        "d2t": in_memory(d2t),
        "t2d": in_memory(t2d),
    }


def config_of(config: Keys, size: int) -> dict[str, object]:
    """The draft's config, for a vocabulary of `size`. A planted draft stays planted, but no longer says how much of it
    is accepted.
    """
    keys = {**config.values, "draft_vocab_size": size}
    section = config.part(PLANTED).values
    if not section:
        return keys
    planted = {key: value for key, value in section.items() if key not in OF_ACCEPTANCE}
    keys[PLANTED] = {**planted, "weights": "written"}
    return {**keys, PLANTED: {**planted, "weights": "written", "sha256": digest(keys)}}
