"""Lines of engines' logs that say something about a PERF_MODE invariant. Lines that are not known say nothing.

The formats were read from these sources:

    TurboMind   `[TM][FATAL][gemm.cu:341] No feasible kernel found …` (lmdeploy, `kernels/gemm/gemm.cu`); tagged lines
                of its EAGLE branch: `[LlamaV2][EAGLE]…`, `[LlamaBatch][EAGLE][fallback] …`,
                `[EAGLE][EagleModule::load] …`, `[EAGLE3][GEMM]…`
    vLLM        0.25.1: `fused_moe.py`, `topk_topp_sampler.py`, `chunked_prefill_paged_decode.py`, `config/model.py`
    SGLang      0.5.17: `fused_moe_triton_config.py`, `server_args.py`
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from specgate.contract.traces import StatedInvariant


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line that matches `pattern` (regular expression, ignoring case) says `meaning` about `invariant`.

    `breaks`: it breaks the invariant, for this reason code. Otherwise it is evidence that holds nothing.
    `speculative`: only said of a role that drafts.
    """

    pattern: str
    invariant: StatedInvariant
    reason_code: str
    meaning: str
    breaks: bool = True
    speculative: bool = False


TURBOMIND: Final = (
    LogLine(r"No feasible kernel found", "I1", "fallback_kernel", "no fused kernel for a product"),
    LogLine(r"\[GEMM\]\[fallback\]|falling back to naive", "I1", "fallback_kernel", "a product on a naive kernel"),
    LogLine(r"cuBLAS fallback", "I1", "fallback_kernel", "a product on cuBLAS, which failed as well"),
    LogLine(
        r"Failed to find a feasible kernel in the cache|No valid kernel found",
        "I2",
        "untuned_kernel",
        "a product without a tuned configuration",
    ),
    LogLine(r"\[GEMM_TUNED\] loaded", "I2", "tuned_cache", "the tuned configurations that were loaded", breaks=False),
    LogLine(
        r"disabling multi-token for this slot",
        "I3",
        "left_multi_token_mode",
        "a request was put into single-token mode",
        speculative=True,
    ),
    LogLine(
        r"\[EAGLE\]\[fallback\]",
        "I3",
        "left_multi_token_mode",
        "speculation fell back",
        speculative=True,
    ),
    LogLine(
        r"EagleModule::load\].*(fail|disabl)|disabling EAGLE",
        "I3",
        "left_multi_token_mode",
        "the draft was not loaded, and speculation is off",
        speculative=True,
    ),
    LogLine(
        r"\[LlamaV2\]\[EAGLE\].*eagle_max_engine_tokens_per_step=",
        "I3",
        "engine_budget",
        "the tokens per step that speculation was started with",
        breaks=False,
        speculative=True,
    ),
)
DEFAULT_CONFIGURATION: Final = LogLine(
    r"Using default .*config.*sub-?optimal|MoE kernel config .*sub-?optimal",
    "I2",
    "default_configuration",
    "kernels run with a default configuration, none was tuned for this GPU and shape",
    breaks=False,
)
VLLM: Final = (
    DEFAULT_CONFIGURATION,
    LogLine(
        r"falling back to (Triton implementation|PyTorch-native|\S+ \S+ kernels)|fallback to the eager mode",
        "I1",
        "engines_fallback",
        "the engine has fallen back",
        breaks=False,
    ),
)
SGLANG: Final = (
    DEFAULT_CONFIGURATION,
    LogLine(r"Cuda graph is disabled", "I1", "engines_fallback", "decoding runs without CUDA graphs", breaks=False),
)
LOG_LINES: Final[Mapping[str, tuple[LogLine, ...]]] = {"lmdeploy": TURBOMIND, "vllm": VLLM, "sglang": SGLANG}
"""Adapter name → the lines that its engine's log may have."""
