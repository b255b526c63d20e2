"""Tables of keys: every row is of a known kind, releases are in order, and no flag of an engine is taken for a typo."""

from __future__ import annotations

import pytest

from specgate.checkpoints.spec_config.flags import from_argv, from_mapping, releases
from specgate.checkpoints.spec_config.tables import Table, llamacpp, lmdeploy, order, sglang, trtllm, vllm

TABLES = {
    "vllm": vllm.FLAGS, "vllm's section": vllm.SECTION, "sglang": sglang.FLAGS, "trtllm": trtllm.FLAGS,
    "trtllm's section": trtllm.SECTION, "lmdeploy": lmdeploy.FLAGS, "llamacpp": llamacpp.FLAGS,
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


@pytest.mark.parametrize("name", TABLES)
def test_a_release_is_not_gone_before_it_came(name: str) -> None:
    table = TABLES[name]
    for row in table.rows.values():
        assert not (row.since and row.until) or order(row.since) <= order(row.until)


@pytest.mark.parametrize("name", OTHER_FLAGS)
def test_flags_about_something_else_are_left_alone(name: str) -> None:
    for flag in OTHER_FLAGS[name].split():
        assert not from_argv([flag], TABLES[name], "test").undecided, flag


def test_releases_are_ordered_as_they_came_out() -> None:
    came = [
        "0.4.1",
        "0.4.1.post4",
        "0.4.10",
        "0.5.3rc2",
        "0.5.3",
        "0.5.3.post1",
        "0.5.10rc0",
        "0.5.10",
        "1.0.0rc1",
        "1.0.0",
    ]
    assert sorted(set(came), key=order) == came


def test_the_releases_of_several_keys_are_those_that_have_all() -> None:
    table = Table("a count 1.0 -\nb count ? 2.0\nc count 3.0 4.0\n")
    rows = table.rows
    assert releases([rows["a"]]) == ("since 1.0", "") and releases([rows["b"]]) == ("until 2.0", "")
    assert releases([rows["a"], rows["b"]]) == ("1.0 to 2.0", "") and releases([]) == ("", "")
    assert releases(rows.values()) == ("", "no release has both --b (until 2.0) and --c (since 3.0)")


def test_a_key_of_a_section_must_be_spelt_as_it_is() -> None:
    assert from_mapping({"num-speculative-tokens": 3}, vllm.SECTION, "test").undecided
    assert not from_mapping({"tensor_parallel-size": 3}, vllm.FLAGS, "test", dashes=True).undecided
