"""A draft's folder with another vocabulary: everything as it was but the LM head, `d2t`, `t2d` and their size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from torch import Tensor

from specgate.backends.eagle3.lib.hf_write import write_config
from specgate.backends.eagle3.lib.pair import DraftFiles, open_draft
from specgate.backends.eagle3.pair_tools.draft_vocab.head import HEAD, Heads
from specgate.backends.eagle3.pair_tools.export.hf import copy_files
from specgate.backends.eagle3.pair_tools.export.opened import in_memory
from specgate.backends.eagle3.pair_tools.export.room import existing, require_disk, writing
from specgate.backends.eagle3.pair_tools.shards import LazyTensor, lazy_tensors, write_shards
from specgate.backends.eagle3.pair_tools.train.vocab import offsets_and_mask
from specgate.backends.eagle3.pairs.gguf_convert import write_json
from specgate.backends.eagle3.pairs.whole_folder import appearing
from specgate.checkpoints.geometry import TargetGeometry
from specgate.checkpoints.hf_keys import PLANTED, Keys
from specgate.checkpoints.planted import digest
from specgate.errors import UsageError

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
