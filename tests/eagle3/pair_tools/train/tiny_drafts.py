"""A tiny random target, and drafts of it, in memory."""

from __future__ import annotations

from pathlib import Path

import torch

from specgate.backends.eagle3.lib.pair import DraftCheckpoint, TargetCheckpoint, load_draft, load_target
from tests.pairs.tiny import write_random_pair


def tiny_pair(folder: Path, *, window: int | None = None, seed: int = 0) -> tuple[TargetCheckpoint, DraftCheckpoint]:
    target_folder, draft_folder = write_random_pair(folder, seed=seed, window=window, vocab=300, draft_vocab=150)
    target = load_target(target_folder, torch.float32, "cpu")
    return target, load_draft(draft_folder, target.geometry, torch.float32, "cpu")
