"""Identity of a server: the engine's build, its settings, and the model that it reports."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from specgate.backends.servers.adapter import UNTOLD
from specgate.backends.servers.adapters.openai import model_of
from specgate.backends.servers.facts.reported import (
    ServerReport,
    commit_of,
    identity_of,
    sglang_settings,
    text_of,
    vllm_answer,
    vllm_on_cpu,
    vllm_settings,
)
from specgate.backends.servers.facts.served import check_served, served_warnings, settings_in
from specgate.backends.servers.options import Options
from specgate.checkpoints.hf.any_target import AnyTarget, read_served_target
from specgate.contract import BASELINE, Budget, EngineIdentity, PairRef, Role, ServedModel
from specgate.contract.samples.engine_facts import SETTINGS
from specgate.errors import BackendError, CheckpointError, UsageError
from specgate.plugins import backend
from tests.backends.servers.helpers import attached, request_of, running_stub

CONFIG = (
    "model='/models/gpt-oss-120b', speculative_config=SpeculativeConfig(method='eagle3', model='/models/draft', "
    "num_spec_tokens=3), tokenizer='/models/gpt-oss-120b', skip_tokenizer_init=False, tokenizer_mode=auto, "
    "revision=None, dtype=torch.bfloat16, max_seq_len=33792, load_format=auto, tensor_parallel_size=1, "
    "quantization=mxfp4, quantization_config=None, enforce_eager=False, kv_cache_dtype=auto, device_config=cuda, "
    "compilation_config={'mode': <CompilationMode.VLLM_COMPILE: 3>, 'inductor_passes': {}, "
    "'cudagraph_mode': <CUDAGraphMode.FULL_AND_PIECEWISE: (2, 1)>, 'cudagraph_num_of_warmups': 1}, "
    "kernel_config=KernelConfig(moe_backend='auto')"
)
"""As `VllmConfig.__str__` of vLLM 0.25.1 writes it, shortened."""
LOG = [
    "(APIServer pid=7) INFO 11-22 10:00:01 [api_server.py:1] vLLM API server version 0.25.1",
    f"(EngineCore pid=9) INFO [core.py:115] Initializing a V1 LLM engine (v0.25.1) with config: {CONFIG}",
    "(EngineCore pid=9) INFO [selector.py:139] Using NHD KV cache layout for FLASH_ATTN backend.",
    "(EngineCore pid=9) INFO [cuda.py:477] Using FLASH_ATTN attention backend out of potential backends: "
    "['FLASH_ATTN', 'TRITON_ATTN'].",
    "(EngineCore pid=9) INFO [flash_attn.py:719] Using FlashAttention version 3",
    "(EngineCore pid=9) INFO [mxfp4.py:391] Using 'TRITON' Mxfp4 MoE backend.",
    "(EngineCore pid=9) INFO [cuda.py:477] Using TRITON_ATTN attention backend out of potential backends: ['X'].",
]
TOLD = {"dtype": "bfloat16", "quantization": "mxfp4", "kv_cache_dtype": "auto", "cuda_graphs": "FULL_AND_PIECEWISE"}


@pytest.mark.parametrize(
    ("version", "commit"),
    [
        ("0.25.1+gabcdef0", "abcdef0"),
        ("0.1.dev1+g1a2b3c4d5.d20261122", "1a2b3c4d5"),
        ("0.21.1rc1.dev159+g9640970de.cu130", "9640970de"),
        ("b11434-2f3a1c", "2f3a1c"),
        ("0.25.1", None),
        ("0.25.1+cu130", None),
        ("0.5.17", None),
        (UNTOLD, None),
    ],
)
def test_a_version_states_its_commit_or_none(version: str, commit: str | None) -> None:
    assert commit_of(version) == commit


def test_vllms_log_tells_how_it_is_set_up_and_what_it_chose_for_the_target() -> None:
    assert vllm_settings(LOG) == {**TOLD, "attention": "FLASH_ATTN 3", "moe": "TRITON"}
    named = [LOG[1], "(EngineCore pid=9) INFO [cuda.py:416] Using AttentionBackendEnum.FLASHINFER backend."]
    assert vllm_settings(named) == {**TOLD, "attention": "FLASHINFER"}
    assert vllm_settings(["INFO Using Triton Unquantized MoE backend out of potential backends: ['Triton']."]) == {
        "moe": "Triton"
    }


def test_a_vllm_in_development_mode_tells_its_config_and_not_what_it_chose() -> None:
    assert vllm_answer({"vllm_config": CONFIG, "vllm_env": {"VLLM_SERVER_DEV_MODE": True}}) == TOLD
    on_cpu = {"vllm_config": CONFIG.replace("device_config=cuda", "device_config=cpu")}
    assert vllm_on_cpu(on_cpu) and not vllm_on_cpu({"vllm_config": CONFIG}) and not vllm_on_cpu(None)
    assert vllm_answer(None) == vllm_answer({"vllm_config": {}}) == vllm_answer([1]) == {}


def logged(folder: Path, *lines: str) -> Path:
    log = folder / "server.log"
    log.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return log


def test_of_a_log_with_several_starts_the_last_one_of_this_version_and_role_counts(tmp_path: Path) -> None:
    plain = [re.sub(r"speculative_config=SpeculativeConfig\(.*?\),", "speculative_config=None,", LOG[1]), *LOG[2:4]]
    fp8 = [line.replace("quantization=mxfp4", "quantization=fp8") for line in LOG]
    later = [line.replace("v0.25.1", "v0.26.0").replace("FLASH_ATTN", "FLASHINFER") for line in LOG]
    log = logged(tmp_path, *fp8, *plain, *LOG, *later)
    data = {**TOLD, "attention": "FLASH_ATTN 3", "moe": "TRITON"}
    assert settings_in("vllm", log, "0.25.1", Role(3)) == data
    assert settings_in("vllm", log, "0.25.1", BASELINE) == {**TOLD, "attention": "FLASH_ATTN"}
    assert settings_in("vllm", log, "0.26.0", Role(3))["attention"] == "FLASHINFER"
    assert settings_in("vllm", log, "0.26.0", BASELINE)["attention"] == "FLASHINFER"  # a request of that server
    assert settings_in("vllm", log, "0.27.0", Role(3)) == {}
    assert settings_in("vllm", logged(tmp_path, *plain), "0.25.1", Role(3)) == {}
    logged(tmp_path, *fp8, *plain, *LOG, *later)
    assert settings_in("sglang", log, "0.25.1", Role(3)) == {}


def test_a_start_is_found_at_the_beginning_of_a_log_however_long_it_became(tmp_path: Path) -> None:
    log = logged(tmp_path, *LOG)
    with log.open("a", encoding="utf-8") as stream:
        stream.writelines("INFO: 127.0.0.1 - POST /v1/completions 200\n" * 1_000 for _ in range(200))
    assert settings_in("vllm", log, "0.25.1", Role(3))["moe"] == "TRITON"
    assert settings_in("vllm", logged(tmp_path, "nothing"), "0.25.1", Role(3)) == {}
    log.write_bytes(b"")
    assert settings_in("vllm", log, "0.25.1", Role(3)) == {} == settings_in("vllm", tmp_path / "no", "1", BASELINE)


def test_the_log_that_is_given_for_a_running_server_tells_what_its_answers_do_not(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    with running_stub("vllm", 3) as url:
        with attached(tmp_path, pair, "vllm", {"url": url}) as engine:
            identity = engine.facts().identity
        assert identity is not None and identity.version is not None and "moe" not in identity.settings
        log = logged(tmp_path, *(line.replace("(v0.25.1)", f"(v{identity.version})") for line in LOG))
        with attached(tmp_path, pair, "vllm", {"url": url, "log": str(log)}) as engine:
            identity = engine.facts().identity
        assert identity is not None
        assert (identity.settings["attention"], identity.settings["moe"]) == ("FLASH_ATTN 3", "TRITON")


def test_sglangs_answer_is_read_without_its_keys() -> None:
    answer = {
        "version": "0.5.17",
        "api_key": "sk-hidden",
        "attention_backend": "fa3",
        "decode_attention_backend": None,
        "prefill_attention_backend": "flashinfer",
        "moe_runner_backend": "triton_kernel",
        "dtype": "bfloat16",
        "quantization": None,
        "kv_cache_dtype": "auto",
        "disable_cuda_graph": False,
        "disable_prefill_cuda_graph": True,
    }
    result = sglang_settings(answer)
    assert result == {
        "attention": "fa3 (prefill: flashinfer)",
        "moe": "triton_kernel",
        "dtype": "bfloat16",
        "quantization": "none",
        "kv_cache_dtype": "auto",
        "cuda_graphs": "decode on, prefill off",
    }
    settled = {"decode": {"backend": "full", "max_bs": 32}, "prefill": {"backend": "disabled"}}
    result = sglang_settings({**answer, "disable_prefill_cuda_graph": False, "cuda_graph_config": settled})
    assert result["cuda_graphs"] == "decode full, prefill off", "what it settled on, not what its switches say"
    assert sglang_settings("no object") == {} == sglang_settings({"version": "0.5.17"})


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(
    st.dictionaries(
        st.sampled_from(["attention_backend", "dtype", "disable_cuda_graph", "cuda_graph_config", "root", "meta"]),
        ANYTHING,
    )
)
def test_nothing_that_a_server_says_of_itself_is_an_error(answer: dict[str, object]) -> None:
    result = sglang_settings(answer)
    assert result.keys() <= set(SETTINGS) and all(
        isinstance(value, str) and len(value) <= 120 for value in result.values()
    )
    assert model_of("m", answer).name == "m" and text_of(answer, "root") in (None, answer.get("root"), *listed(answer))


def listed(answer: dict[str, object]) -> list[object]:
    root = answer.get("root")
    return root if isinstance(root, list) else []


def test_another_build_or_back_end_is_another_fingerprint_and_the_unknown_is_said() -> None:
    identity = identity_of("vllm", [ServerReport(BASELINE, "0.25.1+gabcdef0", {"attention": "FLASH_ATTN 3"})], None)
    assert (identity.build, identity.told_by) == ("abcdef0", "version")
    named = identity_of("vllm", [ServerReport(BASELINE, "0.25.1", {"attention": "FLASH_ATTN 3"})], "sha256:12ab")
    assert (named.build, named.told_by) == ("sha256:12ab", "option")
    unknown = identity_of("vllm", [ServerReport(BASELINE, "0.25.1", {})], None)
    assert unknown.untold == ("build", *SETTINGS)
    assert unknown.fingerprint == {f"engine:{name}": "unknown" for name in ("build", *SETTINGS)}
    other = identity_of("vllm", [ServerReport(BASELINE, "0.25.1", {"attention": "FLASHINFER"})], None)
    assert len({tuple(i.fingerprint.items()) for i in (identity, named, unknown, other)}) == 4


def test_two_roles_of_two_versions_are_no_pair_and_other_settings_are_kept() -> None:
    first = ServerReport(BASELINE, "0.25.1", {"attention": "FLASH_ATTN", "dtype": "bfloat16"})
    other = ServerReport(Role(3), "0.25.1", {"attention": "TRITON_ATTN", "dtype": "bfloat16", "moe": "TRITON"})
    identity = identity_of("vllm", [first, other], None)
    assert identity.differing == {"spec-3": {"attention": "TRITON_ATTN"}}
    assert identity.fingerprint["engine:spec-3.attention"] == "TRITON_ATTN"
    with pytest.raises(BackendError, match=r"baseline's server is version 0.25.1, spec-3's is 0.26.0"):
        identity_of("vllm", [first, replace(other, version="0.26.0")], None)


# ── what a server says that it serves ────────────────────────────────────────────────────────────────────────────────

SIZES = AnyTarget(256, 4, 512, (0,), (), "LlamaForCausalLM")


def seen(**model: object) -> list[ServerReport]:
    return [ServerReport(BASELINE, "1", {}, replace(ServedModel("m"), **model))]  # type: ignore[arg-type]


def test_a_server_of_another_model_is_refused_where_that_can_be_seen(pair: tuple[Path, Path], tmp_path: Path) -> None:
    request = request_of(pair, tmp_path, {})
    check_served("vllm", seen(), SIZES, request)
    check_served("vllm", seen(max_positions=128, vocab=256, path="/elsewhere"), SIZES, request)
    with pytest.raises(BackendError, match=r"serves m with 127 positions, and 128 are needed"):
        check_served("vllm", seen(max_positions=127), SIZES, request)
    with pytest.raises(BackendError, match=r"serves m \(/b\) with 300 token ids, and the pair's target .* has 256"):
        check_served("llamacpp", seen(vocab=300, path="/b"), SIZES, request)


def test_a_tokenizer_of_more_ids_than_the_served_model_is_refused(tmp_path: Path) -> None:
    request = request_of((tmp_path, tmp_path), tmp_path, {})
    request = replace(request, pair=PairRef("served", tmp_path, None, weights="server"))
    check_served("llamacpp", seen(vocab=300), SIZES, request)  # padding rows have no token
    with pytest.raises(BackendError, match=r"with 200 token ids, and the tokenizer .*tokenizer.json has 256"):
        check_served("llamacpp", seen(vocab=200), SIZES, request)


def test_what_can_only_be_suspected_is_a_warning(pair: tuple[Path, Path], tmp_path: Path) -> None:
    request = request_of(pair, tmp_path, {})
    warnings = " ".join(
        served_warnings("sglang", seen(path="/models/Qwen3-8B", architecture="Qwen3ForCausalLM"), SIZES, request)
    )
    assert "is its own word (baseline: m (/models/Qwen3-8B))" in warnings
    assert "serves /models/Qwen3-8B, and the pair's target is target" in warnings
    assert "serves a Qwen3ForCausalLM, and the pair's target is a LlamaForCausalLM" in warnings
    two = [*seen(path="/a/x"), ServerReport(Role(3), "1", {}, ServedModel("m", "/b/y"))]
    assert any("different models" in w for w in served_warnings("vllm", two, SIZES, request))
    assert not list(served_warnings("vllm", [ServerReport(BASELINE, "1", {})], SIZES, request)), "started here"


def test_a_served_pair_is_known_by_its_tokenizer_and_the_config_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    Tokenizer(models.WordLevel({"a": 0, "b": 7}, unk_token="a")).save(str(file))
    assert read_served_target(file) == AnyTarget(8, None, None, (), (file,))
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 16, "num_hidden_layers": 2, "eos_token_id": 3}))
    served_target = read_served_target(file)
    assert (served_target.vocab, served_target.layers, served_target.eos_token_ids) == (16, 2, (3,))
    file.write_text("{}")
    with pytest.raises(CheckpointError, match=r"tokenizer.json: not a tokenizer"):
        read_served_target(file)


@pytest.mark.slow("starts a server")
def test_a_pair_without_weights_here_needs_no_draft_but_a_url_for_every_role(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    Tokenizer(models.WordLevel({f"w{i}": i for i in range(256)} | {"a": 256}, unk_token="a")).save(str(file))
    with running_stub("vllm", 0) as url:
        options = {"url.baseline": url}
        served = PairRef("served", file, None, weights="server")
        engine = backend("vllm").open(replace(request_of((file, file), tmp_path, options), pair=served))
        facts = engine.facts()
        assert (facts.target_sha256, facts.draft_sha256, facts.capture_rule) == (None, None, None)
        assert facts.identity is not None and facts.identity.served == {"baseline": ServedModel("specgate")}
        assert facts.target == "served specgate" and "no hash says" in facts.warnings[0]
        engine.prefill([[1, 2, 3]], draft=True)
        with pytest.raises(UsageError, match=r"no server is named for spec-3"):
            engine.decode(Role(3), Budget(steps=4), ())
        engine.close()


@pytest.mark.parametrize("text", ["", "  ", "a\nb", "x" * 201])
def test_a_build_that_names_nothing_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="option build"):
        Options.parse({"build": text}, ())
    assert Options.parse({"build": " sha256:ab "}, ()).build == "sha256:ab"


@pytest.mark.slow("starts a server")
def test_the_identity_of_an_attached_server_has_the_users_build(pair: tuple[Path, Path], tmp_path: Path) -> None:
    with (
        running_stub("sglang", 0) as url,
        attached(tmp_path, pair, "sglang", {"url.baseline": url, "build": "wheel-7"}) as engine,
    ):
        identity = engine.facts().identity
    assert isinstance(identity, EngineIdentity) and (identity.engine, identity.version, identity.build) == (
        "sglang",
        "0.5.23",
        "wheel-7",
    )
