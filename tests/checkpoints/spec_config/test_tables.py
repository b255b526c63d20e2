"""Tables of keys: no flag of an engine is taken for a typo."""

from __future__ import annotations

import pytest

from specgate.checkpoints.spec_config.flags import from_argv, from_mapping
from specgate.checkpoints.spec_config.formats import llamacpp, lmdeploy, sglang, trtllm, vllm

TABLES = {
    "vllm": vllm.FLAGS, "sglang": sglang.FLAGS, "trtllm": trtllm.FLAGS, "lmdeploy": lmdeploy.FLAGS,
    "llamacpp": llamacpp.FLAGS,
}  # fmt: skip
OTHER_FLAGS = {
    "vllm": "--host --port --served-model-name --gpu-memory-utilization --trust-remote-code --tokenizer --max-logprobs "
    "--disable-log-stats --enable-lora --block-size --swap-space --seed --chat-template --api-key --uvicorn-log-level "
    "--enable-chunked-prefill --kv-cache-memory-bytes --model-impl --num-gpu-blocks-override --cpu-offload-gb",
    "sglang": "--host --port --mem-fraction-static --trust-remote-code --served-model-name --attention-backend "
    "--cuda-graph-max-bs --schedule-policy --page-size --log-level --enable-metrics --random-seed --max-prefill-tokens",
    "trtllm": "--host --port --max_beam_width --gpus_per_node --trust_remote_code --free_gpu_memory_fraction",
    "lmdeploy": "--server-name --server-port --model-name --cache-max-entry-count --log-level --chat-template",
    "llamacpp": "--host --port -ngl --n-gpu-layers --threads --flash-attn --slots --metrics --seed --jinja -fa",
}


@pytest.mark.parametrize("name", OTHER_FLAGS)
def test_flags_about_something_else_are_left_alone(name: str) -> None:
    for flag in OTHER_FLAGS[name].split():
        assert not from_argv([flag], TABLES[name], "test").undecided, flag


def test_a_key_of_a_section_must_be_spelt_as_it_is() -> None:
    assert from_mapping({"num-speculative-tokens": 3}, vllm.SECTION, "test").undecided
    assert not from_mapping({"tensor_parallel-size": 3}, vllm.FLAGS, "test", dashes=True).undecided
