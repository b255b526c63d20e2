"""Differences of a pair when other engines run it from an export: one sentence each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, Literal

import torch

from specgate import plugins
from specgate.backends.eagle3.pair_tools.export.opened import OpenPair, draft_tensors, target_tensors
from specgate.checkpoints.auxiliary_layers import capture_keys
from specgate.checkpoints.exports import ReadsExports
from specgate.checkpoints.hf_keys import Keys
from specgate.checkpoints.turbomind import CAPTURED
from specgate.errors import UsageError

Format = Literal["hf", "speculators", "gguf", "turbomind"]
ENGINES: Final[Mapping[Format, tuple[str, ...]]] = {
    "hf": ("vllm", "sglang", "trtllm", "lmdeploy"),
    "speculators": ("vllm",),
    "gguf": ("llamacpp",),
    "turbomind": ("lmdeploy",),
}
"""Which server back ends read a format, by the names of their adapters."""


def reader(engine: str) -> ReadsExports:
    """Return the back end of an engine of `ENGINES`. Raises UsageError where none of that name reads exports."""
    backend = plugins.backend(engine)
    if not isinstance(backend, ReadsExports):
        raise UsageError(f"back end {engine}: it does not say how its engine reads a pair on disk")
    return backend


def differences(pair: OpenPair, layout: Format, dtype: torch.dtype | None) -> tuple[str, ...]:
    """Every difference, one sentence each."""
    return (
        *pair.draft.warnings,
        *rounding(pair, dtype),
        *windows(pair.draft.geometry.window, layout),
        *switches(pair, layout),
        *captures(pair, layout),
        *ends(pair, layout),
        *tokenizers(pair),
    )


def rounding(pair: OpenPair, dtype: torch.dtype | None) -> Iterator[str]:
    """Weights that are rounded to a narrower dtype."""
    if dtype is None:
        return
    for what, tensors in (("target", target_tensors(pair, None)), ("draft", draft_tensors(pair, None))):
        floats = {t.dtype for t in tensors.values() if t.dtype.is_floating_point}
        wider = [d for d in floats if torch.promote_types(d, dtype) != dtype]
        if wider:
            names = ", ".join(sorted(short(d) for d in wider))
            yield f"the {what}'s weights are rounded from {names} to {short(dtype)}: near ties may fall otherwise"


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def windows(window: int | None, layout: Format) -> Iterator[str]:
    """A draft's attention window that the format or its engines do not keep."""
    if window is None:
        return
    beyond = f"beyond {window} tokens the draft then sees more than it was trained on, and acceptance falls"
    if (engine := {"gguf": "llama.cpp", "turbomind": "TurboMind"}.get(layout)) is not None:
        yield f"{engine} has no window for EAGLE-3 drafts, this one's is {window}: {beyond}"
    else:
        yield (
            f"the draft's window of {window} is written as layer_types and sliding_window; vLLM 0.32 reads them, "
            f"SGLang has --speculative-draft-window-size, an engine that does neither attends to everything: {beyond}"
        )


def switches(pair: OpenPair, layout: Format) -> Iterator[str]:
    """Variants of the draft that an engine does not read."""
    if pair.draft.geometry.norm_before_residual and layout == "hf":
        yield "SGLang 0.5.23 does not read norm_before_residual: it would compute another draft"
    if pair.draft.geometry.draft_vocab < pair.draft.geometry.vocab and layout == "turbomind":
        yield "a build that knows no draft vocabulary misses output.weight, and goes on without the draft"
    if pair.draft.geometry.rope != pair.target.geometry.rope and layout == "turbomind":
        yield "TurboMind rotates the draft as the target, and this draft was made for another RoPE"


def captures(pair: OpenPair, layout: Format) -> Iterator[str]:
    """Engines that feed the draft other auxiliary hidden-state layers, by their own reading of the written ids."""
    layers, meant = pair.target.geometry.layers, pair.draft.capture
    ids = {CAPTURED: [boundary - 1 for boundary in meant.boundaries]}
    written = Keys(Path("draft"), ids if layout == "turbomind" else capture_keys(meant.boundaries))
    for name in ENGINES[layout]:
        if (warning := reader(name).misread_layers(written, layers, meant)) is not None:
            yield warning


def ends(pair: OpenPair, layout: Format) -> Iterator[str]:
    """End-of-sequence tokens that the format cannot hold."""
    ids = pair.target.geometry.eos_token_ids
    if layout == "gguf" and len(ids) > 1:
        yield f"GGUF names one end-of-sequence token; the target has {list(ids)}"


def tokenizers(pair: OpenPair) -> Iterator[str]:
    """A target without a tokenizer."""
    folder = pair.ref.target
    if not (folder / "tokenizer.json").is_file() and not (folder / "tokenizer.model").is_file():
        yield (
            "the target has no tokenizer: prompts must be token ids (vLLM: --skip-tokenizer-init), and LMDeploy 0.18 "
            "does not start: give the folder any tokenizer of the same vocabulary"
        )
