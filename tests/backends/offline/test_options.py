"""Options are understood, or refused before anything is written down or started."""

from __future__ import annotations

import pytest

from specgate.backends.offline.libraries import library_named, parse
from specgate.backends.offline.library import Library
from specgate.contract import BASELINE, Role
from specgate.contract.protocols import ChecksOptions
from specgate.errors import UsageError
from specgate.plugins import backend

VLLM, LMDEPLOY = library_named("vllm-offline"), library_named("lmdeploy-pipeline")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pythonn": "x"}, r"did you mean python\?"),
        ({"config.tp": "2"}, "not known"),
        ({"url": "http://127.0.0.1:1"}, "not known"),
        ({"args": "--flag"}, "not JSON"),
        ({"args": "[1]"}, "a JSON object of keyword arguments"),
        ({"args.spec": "{}"}, "is not a role"),
        ({"llm.dtype": "float16"}, "pair, scenario and role give it"),
        ({"args.baseline": '{"speculative_config": {}}'}, "pair, scenario and role give it"),
        ({"pythonpath": "/nowhere/at/all"}, "is no folder"),
        ({"log.spec-3": "/nowhere/at/all"}, "no such file"),
        ({"log.spec": "x"}, "is not a role"),
        ({"spec.num_speculative_tokens": "1"}, r"spec\.num_speculative_tokens = 1: role and pair give it"),
        ({"spec.model": "/other"}, r"spec\.model = /other: role and pair give it"),
        ({"spec.method": "ngram"}, r"spec\.method = ngram: role and pair give it"),
        ({"show": "everything"}, "steps, requests"),
        ({"stall_s": "-1"}, "a positive number"),
        ({"llm.hf_token": "hf_0123456789abcdefghij"}, "a secret would be written"),
        ({"args": '{"a": {"api_key": "sk-1"}}'}, "a secret would be written"),
        ({"env.HF_TOKEN": "hf_0123456789abcdefghij"}, "a secret would be written"),
        ({"llm.a": "hf_abcdefghijklmnopqrstuvwxyz012345"}, "a secret would be written"),
        ({"token": "sk-1"}, "a secret would be written|not known"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        parse(VLLM, options)
    assert "sk-1" not in str(caught.value) and "0123456789" not in str(caught.value)


def test_values_are_json_or_words_and_a_role_has_its_own() -> None:
    options = parse(
        VLLM,
        {
            "llm.enforce_eager": "true",
            "llm.gpu_memory_utilization": "0.4",
            "llm.attention_backend": "FLASH_ATTN",
            "args": '{"kv_cache_dtype": "auto", "enforce_eager": false}',
            "args.spec-3": '{"gpu_memory_utilization": 0.5}',
            "spec.draft_tensor_parallel_size": "1",
            "env.VLLM_CACHE_ROOT": "/tmp/x",
        },
    )
    everywhere = {"enforce_eager": True, "attention_backend": "FLASH_ATTN", "kv_cache_dtype": "auto"}
    assert options.args_of(BASELINE) == {**everywhere, "gpu_memory_utilization": 0.4}
    assert options.args_of(Role(3)) == {**everywhere, "gpu_memory_utilization": 0.5}
    assert options.spec == {"draft_tensor_parallel_size": 1} and options.env == {"VLLM_CACHE_ROOT": "/tmp/x"}


@pytest.mark.parametrize(
    ("options", "message"),
    [({"force_al": "3"}, "force_al = 3: lmdeploy has no way"), ({"drafter": "ngram"}, "lmdeploy does not draft so")],
)
@pytest.mark.parametrize("name", ["lmdeploy", "lmdeploy-pipeline"])
def test_a_method_that_an_engine_does_not_have_is_refused_before_a_run_folder_stores_it(
    name: str, options: dict[str, str], message: str
) -> None:
    engine = backend(name)
    assert isinstance(engine, ChecksOptions)
    with pytest.raises(UsageError, match=message):
        engine.check_options(options)


@pytest.mark.parametrize("library", [VLLM, LMDEPLOY])
def test_a_build_is_named_as_for_a_server(library: Library) -> None:
    assert parse(library, {"build": "wheel-7"}).common.build == "wheel-7"
    with pytest.raises(UsageError, match="build"):
        parse(library, {"build": " "})


def test_lmdeploys_engine_is_one_of_two() -> None:
    assert parse(LMDEPLOY, {}).own["engine"] == "pytorch"
    assert parse(LMDEPLOY, {"engine": "turbomind", "config.tp": "2"}).args_of(BASELINE) == {"tp": 2}
    with pytest.raises(UsageError, match="pytorch, turbomind"):
        parse(LMDEPLOY, {"engine": "triton"})
