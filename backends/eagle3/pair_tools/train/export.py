"""Write a trained draft as a Hugging Face folder in the common EAGLE-3 layout."""

from __future__ import annotations

from pathlib import Path

import torch

from specgate.backends.eagle3.lib.hf_write import draft_config, write_checkpoint
from specgate.backends.eagle3.lib.pair import TargetCheckpoint
from specgate.backends.eagle3.pair_tools.train.draft import TrainableDraft
from specgate.backends.eagle3.pair_tools.train.vocab import offsets_and_mask
from specgate.checkpoints.hf.draft import TRAINED_FOR


def export(draft: TrainableDraft, folder: Path, target: TargetCheckpoint, boundaries: tuple[int, ...]) -> None:
    """Write `folder/model.safetensors` (bfloat16, with `d2t` and `t2d`) and `folder/config.json`."""
    tensors = {name: t.detach().to(torch.bfloat16).cpu().contiguous() for name, t in draft.named().items()}
    tensors["d2t"], tensors["t2d"] = (t.cpu() for t in offsets_and_mask(draft.target_ids, draft.geometry.vocab))
    keys = draft_config(draft.geometry, boundaries, "bfloat16") | {TRAINED_FOR: {"sha256": target.sha256}}
    write_checkpoint(folder, keys, tensors)
