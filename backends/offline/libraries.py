"""The libraries, by the name of their back end: LMDeploy's `lmdeploy.pipeline` and vLLM's `vllm.LLM`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from specgate.backends.offline.library import Library, Opening
from specgate.backends.offline.options import OfflineOptions
from specgate.backends.servers.adapter import Adapter, check_method
from specgate.backends.servers.adapters import lmdeploy, vllm
from specgate.backends.servers.exchange import KvCache
from specgate.backends.servers.facts.kv_cache import vllm_log
from specgate.backends.servers.facts.reported import vllm_settings
from specgate.contract.protocols import OpenRequest
from specgate.errors import UsageError

LMDEPLOY_SHARE: Final = 0.35
"""Of the free memory for each of two engines' caches side by side; the second engine's weights come after the first
cache.
"""


class LmdeployLibrary:
    name = "lmdeploy-pipeline"
    module = "lmdeploy"
    adapter: Adapter = lmdeploy.ADAPTER
    prefix = "config"
    own_options: Mapping[str, Sequence[str]] = {"engine": lmdeploy.ENGINES}
    ours: Sequence[str] = ("dtype", "session_len", "max_batch_size", "enable_prefix_caching", "speculative_config")
    environment: Mapping[str, str] = {"HF_HUB_OFFLINE": "1"}

    def speculation(self, opening: Opening) -> Mapping[str, object]:
        role = {"method": "eagle3", "model": str(opening.draft), "num_speculative_tokens": opening.role.k}
        return {**role, **opening.options.spec}

    def spec_format(self, options: OfflineOptions) -> str:
        return "turbomind" if options.own["engine"] == "turbomind" else "lmdeploy"

    def opening(self, opening: Opening) -> Mapping[str, object]:
        request, options = opening.request, opening.options
        config: dict[str, object] = {
            "dtype": request.dtype,
            "session_len": request.max_positions,
            "max_batch_size": request.max_batch,
            "enable_prefix_caching": options.common.prefix_cache == "on",
        }
        if options.common.servers == "together" and request.max_k:
            config["cache_max_entry_count"] = LMDEPLOY_SHARE
        return {
            "model": str(request.pair.target),
            "kind": options.own["engine"],
            "config": {**config, **options.args_of(opening.role)},
            "draft": self.speculation(opening) if opening.role.speculative else None,
            "slots": request.max_batch,
            "environment": perf_environment(request) if options.own["engine"] == "turbomind" else {},
        }

    def shows_steps(self, opening: Opening, facts: Mapping[str, object]) -> bool:
        """Outputs come request by request, and say nothing of the steps that requests share."""
        if opening.options.show == "steps":
            raise UsageError("option show = steps: LMDeploy's engines show requests only", hint="leave it out")
        return False

    def settings_in(self, log: Sequence[str]) -> Mapping[str, str]:
        return {}

    def kv_cache_in(self, log: Sequence[str]) -> KvCache:
        return KvCache()


def perf_environment(request: OpenRequest) -> dict[str, str]:
    """Variables by which TurboMind with EAGLE-3 is told what is measured. The driver sets those that it knows."""
    if not request.perf_mode:
        return {}
    steps = {} if request.steps is None else {"LMDEPLOY_EAGLE_MICRO_STEPS": str(request.steps)}
    return {"LMDEPLOY_EAGLE_PERF_MODE": "1", **steps}


LMDEPLOY_LIBRARY = LmdeployLibrary()


MOST_BATCHED: Final = 1 << 17
"""Prompts of more tokens are not prefilled in one step, unless the user says so: activations would take the memory."""
VLLM_SHARE: Final = 0.45
"""Of the GPU's memory for each of two engines side by side."""
SLACK: Final = 64
"""Tokens of a step that vLLM keeps for drafts, per request."""


class VllmLibrary:
    name = "vllm-offline"
    module = "vllm"
    adapter: Adapter = vllm.ADAPTER
    prefix = "llm"
    own_options: Mapping[str, Sequence[str]] = {}
    ours: Sequence[str] = (
        *("model", "dtype", "max_model_len", "max_num_seqs", "enable_prefix_caching", "disable_log_stats"),
        *("skip_tokenizer_init", "speculative_config", "spec_method", "spec_model", "spec_tokens"),
    )
    environment: Mapping[str, str] = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }

    def speculation(self, opening: Opening) -> Mapping[str, object]:
        role = vllm.ADAPTER.speculation_of(opening.role, opening.request.pair.draft, opening.options.common)
        return {**role, **opening.options.spec}

    def spec_format(self, options: OfflineOptions) -> str:
        return "vllm"

    def opening(self, opening: Opening) -> Mapping[str, object]:
        request, options = opening.request, opening.options
        args = options.args_of(opening.role)
        arguments: dict[str, object] = {
            "model": str(request.pair.target),
            "dtype": request.dtype,
            "max_model_len": request.max_positions,
            "max_num_seqs": request.max_batch,
            "enable_prefix_caching": options.common.prefix_cache == "on",
            "disable_log_stats": False,
            "skip_tokenizer_init": True,
            "seed": 0,
        }
        if options.common.servers == "together" and request.max_k:
            arguments["gpu_memory_utilization"] = VLLM_SHARE
        if request.max_batch > 1 and (batched := self.whole_batch(opening)) <= MOST_BATCHED:
            arguments["max_num_batched_tokens"] = batched
        if opening.role.speculative:
            arguments["speculative_config"] = self.speculation(opening)
        return {"arguments": {**arguments, **args}}

    def whole_batch(self, opening: Opening) -> int:
        """Tokens of a step that prefills all prompts of a batch."""
        return max(8192, opening.request.max_batch * (opening.request.max_positions + SLACK))

    def shows_steps(self, opening: Opening, facts: Mapping[str, object]) -> bool:
        show, refused = opening.options.show, why_no_steps(opening, facts)
        if show == "steps" and refused is not None:
            raise UsageError(f"option show = steps: {refused}", hint="-o show=requests, which is what a server shows")
        return show != "requests" and refused is None

    def settings_in(self, log: Sequence[str]) -> Mapping[str, str]:
        return vllm_settings(log)

    def kv_cache_in(self, log: Sequence[str]) -> KvCache:
        return vllm_log(log)


def why_no_steps(opening: Opening, facts: Mapping[str, object]) -> str | None:
    """Return the reason why an engine's blocks have no steps of their own, or None if they have.

    All prompts of a batch must be prefilled in one step. Else some requests decode while others are prefilled.
    """
    request, batched = opening.request, facts.get("batched_tokens")
    needed = request.max_batch * request.max_positions
    if opening.options.common.servers == "apart":
        return "with servers = apart, a block may begin with the start of an engine"
    if request.max_batch > 1 and (not isinstance(batched, int) or needed > batched):
        return f"a step of this engine takes {batched} tokens, and the prompts of a batch may have {needed}"
    if request.max_batch > 1 and not facts.get("in_one_process"):
        return "with VLLM_ENABLE_V1_MULTIPROCESSING, the requests of a batch reach the engine one by one"
    return None


VLLM_LIBRARY = VllmLibrary()


LIBRARIES: Final[Mapping[str, Library]] = {library.name: library for library in (VLLM_LIBRARY, LMDEPLOY_LIBRARY)}


def library_named(name: str) -> Library:
    return LIBRARIES[name]


def parse(library: Library, raw: Mapping[str, str]) -> OfflineOptions:
    """The options of a library's back end. Raises UsageError for bad ones."""
    options = OfflineOptions.parse(raw, library.prefix, library.own_options, library.ours)
    check_method(library.adapter, options.common, options.common.drafter)
    return options
