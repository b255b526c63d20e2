"""Random targets of several architectures, as transformers saves them, and a random EAGLE-3 draft for each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GptOssConfig, LlamaConfig, MistralConfig, PretrainedConfig, Qwen3Config

from specgate.backends.eagle3.transformers.engine import TransformersEngine
from specgate.backends.eagle3.transformers.open import open_engine
from specgate.checkpoints.geometry import DraftGeometry, RopeSpec
from specgate.contract import PairRef
from specgate.contract.protocols import OpenRequest
from tests.pairs.tiny import write_draft

PROMPTS = [[5, 9, 2, 7, 7, 1, 30, 12], [3, 3, 8], [40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 52]]
WINDOW = 6
"""Positions that sliding layers see: fewer than two of the prompts have."""
BOUNDARIES = (0, 2, 4)
SIZES: dict[str, Any] = {
    "vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512, "initializer_range": 0.2,
    "bos_token_id": 298, "eos_token_id": 299, "pad_token_id": None, "tie_word_embeddings": False,
}  # fmt: skip
MIXED = ["sliding_attention", "full_attention"] * 2
CONFIGS: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**SIZES),
    "mistral": MistralConfig(**SIZES, sliding_window=WINDOW),
    "qwen3": Qwen3Config(**SIZES, use_sliding_window=True, sliding_window=WINDOW, layer_types=MIXED),
    "gpt_oss": GptOssConfig(
        **SIZES, num_local_experts=4, num_experts_per_tok=2, sliding_window=WINDOW, layer_types=MIXED
    ),
}
"""Full attention; windows in every layer; windows in every other layer; the same with experts and attention sinks."""


def write_pair(folder: Path, architecture: str, draft_vocab: int = 8) -> PairRef:
    """Write a random pair. Of so few draft tokens some are accepted by chance."""
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(CONFIGS[architecture], dtype=torch.float32)
    model.generation_config.eos_token_id = SIZES["eos_token_id"]
    model.save_pretrained(folder / "target")
    draft = DraftGeometry(
        hidden=64,
        target_hidden=64,
        features=len(BOUNDARIES),
        intermediate=96,
        heads=4,
        kv_heads=2,
        head_dim=16,
        vocab=300,
        draft_vocab=draft_vocab,
        rms_eps=1e-5,
        rope=RopeSpec("default", 10000.0, 16),
        max_positions=512,
    )
    write_draft(folder / "draft", draft, BOUNDARIES, torch.Generator().manual_seed(5))
    return PairRef(architecture, folder / "target", folder / "draft")


def request(pair: PairRef, **options: str) -> OpenRequest:
    return OpenRequest(pair, "float32", 3, 160, 5, False, {"device": "cpu", **options})


def opened(pair: PairRef, *, prompts: Sequence[Sequence[int]] = PROMPTS, **options: str) -> TransformersEngine:
    engine = open_engine(request(pair, **options))
    engine.prefill(prompts, draft=True)
    return engine


def generated(pair: PairRef, prompt: Sequence[int], new_tokens: int) -> tuple[int, ...]:
    """Run `generate` of transformers on one prompt, by greedy decoding past the end of text."""
    model = AutoModelForCausalLM.from_pretrained(pair.target, dtype=torch.float32, attn_implementation="eager")
    ids = torch.tensor([list(prompt)])
    settings: dict[str, Any] = {"max_new_tokens": new_tokens, "min_new_tokens": new_tokens, "do_sample": False}
    model.generation_config.eos_token_id = None
    out = model.generate(ids, attention_mask=torch.ones_like(ids), pad_token_id=0, **settings)
    return tuple(out[0, len(prompt) :].tolist())
