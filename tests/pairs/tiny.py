"""A random target and a random EAGLE-3 draft in the common Hugging Face layout, for tests and smoke runs in seconds.

The weights are untrained, so acceptance is near zero. The pair exercises loading, arithmetic and the whole harness.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from specgate.backends.eagle3.lib.hf_write import draft_config, target_config, write_checkpoint
from specgate.backends.eagle3.lib.layout import target_tensors
from specgate.checkpoints.geometry import DraftGeometry, RopeSpec, TargetGeometry
from specgate.checkpoints.heads.tensors import draft_tensors
from tests.support.engines.house import write_byte_tokenizer

BOS, EOS = "<|begin|>", "<|end|>"
BYTES: Final = 256
SMALLEST_VOCAB: Final = BYTES + 2
WEIGHT_STD: Final = 0.2
"""Large enough that the logits of two tokens differ clearly, so that greedy decoding meets no near ties."""


def write_random_pair(
    folder: Path,
    *,
    seed: int,
    layers: int = 4,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 16,
    intermediate: int = 128,
    vocab: int = 320,
    draft_vocab: int = 96,
    window: int | None = None,
    positions: int = 4096,
    boundaries: Sequence[int] | None = None,
    tied: bool = False,
    head_norms: bool = False,
) -> tuple[Path, Path]:
    """Write `folder/target`, a Llama or, with `head_norms`, a Qwen3, and `folder/draft`, in float32; return both paths.
    The target has a byte-level `tokenizer.json`.

    The same arguments give the same bytes. `boundaries` default to 1, layers // 2, layers - 1. The tokenizer knows
    every byte and two special tokens, so `vocab` must be at least 258; ids above those decode to nothing. Raises
    ValueError for a vocabulary that is too small.
    """
    if vocab < SMALLEST_VOCAB or not 0 < draft_vocab <= vocab:
        raise ValueError(f"vocab = {vocab}, draft_vocab = {draft_vocab}: needs vocab ≥ {SMALLEST_VOCAB}, draft_vocab")
    captured = tuple(boundaries or (1, layers // 2, layers - 1))
    rope = RopeSpec("default", 10000.0, head_dim)
    target = TargetGeometry(
        *(layers, hidden, intermediate, heads, kv_heads, head_dim, vocab, 1e-5, rope, positions, tied, (BYTES + 1,)),
        BYTES,
        head_norms=head_norms,
    )
    draft = DraftGeometry(
        hidden=hidden,
        target_hidden=hidden,
        features=len(captured),
        intermediate=intermediate,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=vocab,
        draft_vocab=draft_vocab,
        rms_eps=1e-5,
        rope=rope,
        max_positions=positions,
        window=window,
    )
    generator = torch.Generator().manual_seed(seed)
    write_target(folder / "target", target, generator)
    write_draft(folder / "draft", draft, captured, generator)
    return folder / "target", folder / "draft"


def write_target(folder: Path, g: TargetGeometry, generator: torch.Generator) -> None:
    tensors = {name: random_tensor(want.shape, generator) for name, want in target_tensors(g).items()}
    write_checkpoint(folder, target_config(g, "float32"), tensors)
    write_tokenizer(folder)


def write_draft(folder: Path, g: DraftGeometry, boundaries: Sequence[int], generator: torch.Generator) -> None:
    tensors = {name: random_tensor(want.shape, generator) for name, want in draft_tensors(g, False, False).items()}
    ids = torch.randperm(g.vocab, generator=generator)[: g.draft_vocab].sort().values
    tensors["d2t"] = ids - torch.arange(g.draft_vocab)
    tensors["t2d"] = torch.zeros(g.vocab, dtype=torch.bool).index_fill(0, ids, True)
    write_checkpoint(folder, draft_config(g, boundaries, "float32"), tensors)


def random_tensor(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Norm weights are drawn around 1, matrices around 0."""
    noise = torch.randn(shape, generator=generator)
    return 1 + 0.1 * noise if len(shape) == 1 else WEIGHT_STD * noise


def write_tokenizer(folder: Path) -> None:
    """A byte-level tokenizer without merges: ids 0 … 255 are the byte alphabet in order, then come begin and end."""
    write_byte_tokenizer(folder)
    content = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BOS, "eos_token": EOS}
    (folder / "tokenizer_config.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
