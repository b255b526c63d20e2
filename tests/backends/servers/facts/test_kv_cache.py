"""Size of a KV cache, as engines report it: formats as documented, and others are ignored."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from specgate.backends.servers.exchange import KvCache
from specgate.backends.servers.facts.kv_cache import LARGEST, sglang_answer, vllm_log, vllm_metrics

LOG = [
    "(EngineCore pid=9) INFO 11-22 10:00:31 [gpu_worker.py:538] Available KV cache memory: 35.62 GiB",
    "(EngineCore pid=9) INFO 11-22 10:00:31 [kv_cache_utils.py:2146] GPU KV cache size: 291,808 tokens",
    "(EngineCore pid=9) INFO [kv_cache_utils.py:2147] Maximum concurrency for 33,792 tokens per request: 8.64x",
]
"""As vLLM 0.25.1 logs it."""
INFO = (
    'vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",'
    'kv_cache_size_tokens="%s",num_gpu_blocks="18238"} 1.0'
)


def test_vllms_log_tells_tokens_and_memory() -> None:
    assert vllm_log(LOG) == KvCache(291_808, round(35.62 * (1 << 30)))
    assert vllm_log(LOG[2:]) == KvCache()
    assert vllm_log([*LOG, "GPU KV cache size: 1,024 tokens"]).tokens == 1024


@pytest.mark.parametrize(("message", "tokens"), [("291,808", 18238 * 16), ("291808", 291_808), ("None", 18238 * 16)])
def test_vllms_metrics_tell_the_capacity_or_the_blocks_that_make_it(message: str, tokens: int) -> None:
    assert vllm_metrics(f"# HELP x\n{INFO % message}\nvllm:num_requests_running 0\n") == KvCache(tokens)


def test_engines_of_one_server_add_up() -> None:
    assert vllm_metrics("\n".join([INFO % "100", INFO % "200"])).tokens == 300


def test_sglangs_answer_tells_tokens_and_memory() -> None:
    usage = {"weight": 15.0, "kvcache": 2.5, "token_capacity": 4096, "graph": {"decode": 0.4}}
    answer = {"max_total_num_tokens": 4096, "internal_states": [{"memory_usage": usage}]}
    assert sglang_answer(answer) == KvCache(4096, 5 << 29, of_free=True)
    assert sglang_answer({"max_total_num_tokens": 4096}) == KvCache(4096, of_free=True)
    usage["kvcache"] = 3
    assert sglang_answer({"internal_states": [{"memory_usage": usage}]}).bytes == 3 << 30


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=5,
)


@example(tokens=None, states=None, size=1.7e299, text="")  # finite, and as bytes it is not
@given(tokens=JSON, states=JSON, size=JSON, text=st.text(max_size=40))
def test_whatever_a_server_says_is_a_size_or_not_told(tokens: Any, states: Any, size: Any, text: str) -> None:
    usage = [{"memory_usage": {"kvcache": size}}]
    sizes = [
        sglang_answer({"max_total_num_tokens": tokens, "internal_states": states}),
        sglang_answer({"internal_states": usage}),
        sglang_answer(states),
        vllm_metrics(
            f'vllm:cache_config_info{{kv_cache_size_tokens="{text}",block_size="{text}",num_gpu_blocks="9"}} 1'
        ),
        vllm_log([f"GPU KV cache size: {text} tokens", f"Available KV cache memory: {text} GiB", text]),
    ]
    for result in sizes:
        assert all(value is None or 0 < value <= LARGEST for value in (result.tokens, result.bytes))
