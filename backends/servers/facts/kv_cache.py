"""Size of an engine's KV cache, as the engine reports it.

Serving engines give the KV cache what their share of the GPU's memory leaves after weights, activations and CUDA
graphs. What a draft takes therefore shows as tokens that the cache has no room for, not as memory.

Formats: vLLM 0.25.1 (`v1/core/kv_cache_utils.py` and `v1/worker/gpu_worker.py` for the log; `CacheConfig.metrics_info`
for the labels of `vllm:cache_config_info`), SGLang 0.5.17 (`scheduler_info` and `build_memory_usage`, in
`/server_info`). Whatever is not there, or looks otherwise, is not told: nothing here is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from specgate.backends.servers.exchange import KvCache

GIBIBYTE: Final = 1 << 30
LARGEST: Final = 1 << 50
"""Neither tokens nor bytes of a cache are more; what says so is not believed."""
TOKENS: Final = re.compile(r"KV cache size: ([\d,]{1,20}) tokens")
GIB: Final = re.compile(r"Available KV cache memory: (\d{1,6}(?:\.\d{1,6})?) GiB")
INFO: Final = re.compile(r"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)
LABEL: Final = re.compile(r'(\w+)="([^"]*)"')


def vllm_log(lines: Iterable[str]) -> KvCache:
    """Read vLLM's log. The last mention counts, since a start may try twice."""
    tokens = size = None
    for line in lines:
        if match := TOKENS.search(line):
            tokens = believed(match[1].replace(",", ""))
        if match := GIB.search(line):
            size = believed(str(round(float(match[1]) * GIBIBYTE)))
    return KvCache(tokens, size)


def vllm_metrics(text: str) -> KvCache:
    """Read the cache's size from `/metrics` of a vLLM: the capacity itself in versions that count it over all groups of
    layers, else blocks × tokens per block. Several engines (data parallel) are added up.
    """
    capacities = [
        tokens for match in INFO.finditer(text) if (tokens := capacity(dict(LABEL.findall(match[1])))) is not None
    ]
    return KvCache(believed(str(sum(capacities))))


def capacity(labels: Mapping[str, str]) -> int | None:
    """Tokens, from the labels of one engine's `cache_config_info`."""
    if (tokens := believed(labels.get("kv_cache_size_tokens", ""))) is not None:
        return tokens
    blocks, size = believed(labels.get("num_gpu_blocks", "")), believed(labels.get("block_size", ""))
    return believed(str(blocks * size)) if blocks and size else None


def sglang_answer(answer: object) -> KvCache:
    """Read SGLang's `/server_info`: the capacity in tokens, and the memory of the cache in GiB.

    It is sized by free memory (0.5.17, `kv_cache_configurator.py`, `_profile_available_bytes`): what is free once the
    weights are loaded, less (1 - mem_fraction_static) of what was free before. vLLM's share is of the whole GPU
    (0.25.1, `v1/worker/utils.py`, `request_memory`).
    """
    if not isinstance(answer, Mapping):
        return KvCache()
    states = answer.get("internal_states")
    state = states[0] if isinstance(states, list) and states and isinstance(states[0], Mapping) else {}
    usage = state.get("memory_usage")
    size = usage.get("kvcache") if isinstance(usage, Mapping) else None
    gibibytes = size if isinstance(size, int | float) and not isinstance(size, bool) else 0
    known = round(gibibytes * GIBIBYTE) if 0 < gibibytes <= LARGEST / GIBIBYTE else 0
    return KvCache(believed(str(answer.get("max_total_num_tokens"))), believed(str(known)), of_free=True)


def believed(text: str) -> int | None:
    """A whole number above 0 in digits; None for anything else."""
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else 0
    return number if 0 < number <= LARGEST else None
