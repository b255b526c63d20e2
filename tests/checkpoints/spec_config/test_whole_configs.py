"""Configs are read with all that belongs to them; what was not read is not known, and nothing is aligned then."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specgate.checkpoints.spec_config.alignment import Alignment, align
from specgate.checkpoints.spec_config.sources import read_source
from specgate.errors import ExitCode, UsageError
from tests.checkpoints.folders import DRAFT, LLAMA, keys

SECTION = '{"method": "eagle3", "model": "/m/head-eagle3", "num_speculative_tokens": 3}'
AROUND = "--tensor-parallel-size 4 --kv-cache-dtype fp8 --max-model-len 131072 --no-enable-prefix-caching"
SAME = f"vllm serve /m/target-70b {AROUND} --speculative-config '{SECTION}'"
SERVE = {
    "model": "/m/target-70b",
    "tensor-parallel-size": 4,
    "kv-cache-dtype": "fp8",
    "max-model-len": 131072,
    "enable-prefix-caching": False,
    "speculative-config": json.loads(SECTION),
}
SGLANG = (
    "sglang:--model-path /m/t --speculative-algorithm EAGLE3 --speculative-draft-model-path /m/d "
    "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
)


def beside(a: str, b: str) -> Alignment:
    """Two configs, which say the same in either order."""
    result = align(read_source(a), read_source(b))
    assert result.exit_code == align(read_source(b), read_source(a)).exit_code
    return result


def different(result: Alignment) -> set[str]:
    return {difference.term for difference in result.differences if difference.breaks != "nothing"}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def yaml_of(folder: Path, name: str, values: dict[str, object]) -> str:
    (folder / name).write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in values.items()))
    return name


@pytest.mark.parametrize(
    "spelling",
    [
        lambda values: values,
        lambda values: {key.replace("-", "_"): value for key, value in values.items()},
        lambda values: {**values, "speculative-config": SECTION},
    ],
)
def test_the_file_of_config_says_what_its_flags_say(here: Path, spelling: object) -> None:
    file = yaml_of(here, "serve.yaml", spelling(SERVE))  # type: ignore[operator]
    for source in (file, f"vllm serve --config {file}", f"vllm serve /m/target-70b --config={file}"):
        assert beside(source, SAME).exit_code is ExitCode.PASS


@pytest.mark.parametrize(
    "text",
    [
        "enable-prefix-caching: no\nspeculative-config: {method: eagle3, model: /m/d, num_speculative_tokens: 3}",
        "x: &spec {method: eagle3, model: /m/d, num_speculative_tokens: 3}\nspeculative-config: *spec\n"
        "enable-prefix-caching: False",
        "x: &most {method: eagle3, model: /m/d}\nspeculative-config: {<<: *most, num_speculative_tokens: 3}\n"
        "no-enable-prefix-caching: true",
    ],
)
def test_a_file_is_read_in_the_yaml_that_engines_read(here: Path, text: str) -> None:
    (here / "serve.yaml").write_text(f"model: /m/t\n{text}\n")
    flags = "--no-enable-prefix-caching -sc.method eagle3 -sc.model /m/d -sc.num_speculative_tokens 3"
    assert beside("serve.yaml", f"vllm serve /m/t {flags}").exit_code is ExitCode.PASS


def test_keys_that_are_numbers_are_read(here: Path) -> None:
    (here / "x.yaml").write_text("speculative_config:\n  decoding_type: Eagle3\n  max_draft_len: 3\n"
                                 "  draft_len_schedule: {4: 3, 8: 2}\n")  # fmt: skip
    assert "by batch size" in str(read_source("x.yaml").value("varies"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1\n", "x.yaml:2: not valid YAML"),
        ("- model\n", "x.yaml:1: no mapping"),
        ("".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9) if n else 1}]\n" for n in range(9)), "stand for more"),
        ("a: &a [*a]\n", "an alias inside itself"),
        ("a: !!python/object:os.system x\n", "not valid YAML"),
    ],
)
def test_a_bad_file_is_named_and_costs_nothing(here: Path, text: str, message: str) -> None:
    (here / "x.yaml").write_text(text)
    with pytest.raises(UsageError, match=message):
        read_source("vllm serve /m/t --config x.yaml")


def test_flags_win_over_the_file_of_config(here: Path) -> None:
    file = yaml_of(here, "serve.yaml", SERVE)
    result = beside(f"vllm serve --config {file} -tp 2", SAME)
    assert different(result) == {"tp"}


@pytest.mark.parametrize(
    ("changes", "terms"),
    [
        ({"model": "/m/another-8b"}, {"target"}),
        ({"tensor-parallel-size": 1}, {"tp"}),
        ({"kv-cache-dtype": "auto"}, {"kv_dtype"}),
        ({"pipeline-parallel-size": 2}, {"pp"}),
        ({"data-parallel-size": 2}, {"dp"}),
        ({"load-format": "dummy"}, {"target_weights"}),
        ({"hf-overrides": {"rope_theta": 1.0}}, {"overrides"}),
        ({"enforce-eager": True}, {"graphs"}),
        ({"compilation-config": {"cudagraph_mode": "NONE"}}, {"compilation"}),
    ],
)
def test_keys_beside_the_section_are_compared(here: Path, changes: dict[str, object], terms: set[str]) -> None:
    file = yaml_of(here, "serve.yaml", {**SERVE, **changes})
    result = beside(file, SAME)
    assert different(result) == terms and result.exit_code is ExitCode.FAIL


def test_a_file_of_sglang_says_what_its_flags_say(here: Path) -> None:
    words = SGLANG.removeprefix("sglang:--").split(" --")
    pairs = [word.split() for word in words]
    values: dict[str, object] = {key: int(value) if value.isdigit() else value for key, value in pairs}
    file = yaml_of(here, "sglang.yaml", values)
    for source in (file, f"python3 -m sglang.launch_server --config {file}"):
        assert beside(source, SGLANG).exit_code is ExitCode.PASS
    assert different(beside(f"sglang serve --config {file} --tp 2", SGLANG)) == {"tp"}


@pytest.mark.parametrize("old", ["decoding_type: Eagle\n", "decoding_type: EAGLE3\n", "decoding_type: eagle3\n"])
@pytest.mark.parametrize("key", ["speculative_model", "speculative_model_dir", "pytorch_weights_path"])
def test_every_spelling_of_tensorrt_llm_is_the_same_draft(here: Path, old: str, key: str) -> None:
    text = "kv_cache_config: {enable_block_reuse: false}\nspeculative_config:\n  max_draft_len: 3\n"
    text += "  eagle3_layers_to_capture: [1, 15, 28]\n"
    (here / "old.yaml").write_text(f"{text}  {old}  {key}: /m/head-eagle3\n")
    (here / "new.yaml").write_text(f"{text}  decoding_type: Eagle3\n  speculative_model: /m/head-eagle3\n")
    assert beside("old.yaml", "new.yaml").exit_code is ExitCode.PASS
    vllm = f"vllm:--speculative-config '{SECTION}' --no-enable-prefix-caching"
    assert beside("old.yaml", vllm).exit_code is ExitCode.PASS
    served = "trtllm-serve /m/t --tp_size 1 --extra_llm_api_options old.yaml"
    assert beside(served, "new.yaml").exit_code is ExitCode.PASS


def test_the_tensorrt_back_end_takes_eagle_for_the_first_eagle() -> None:
    config = '{"backend": "%s", "speculative_config": {"decoding_type": "Eagle", "max_draft_len": 3}}'
    assert [read_source(config % name).value("method") for name in ("tensorrt", "pytorch")] == ["eagle", "eagle3"]


def test_a_flag_and_a_key_of_tensorrt_llm_that_contradict_each_other_are_refused(here: Path) -> None:
    (here / "x.yaml").write_text("tensor_parallel_size: 2\n")
    with pytest.raises(UsageError, match="--tp-size 4, and tensor_parallel_size: 2 in the file"):
        read_source("trtllm-serve /m/t --tp_size 4 --config x.yaml")
    assert read_source("trtllm-serve /m/t --set kv_cache_config.dtype=fp8").value("kv_dtype") == "fp8"


@pytest.mark.parametrize(
    "source",
    [
        SGLANG.replace("EAGLE3", "EAGLE4"),
        SECTION.replace('"eagle3"', '"eagle4"'),
        '{"speculative_config": {"decoding_type": "Eagle4", "max_draft_len": 3, "speculative_model": "d"}}',
        "lmdeploy:--speculative-algorithm eagle4 --speculative-draft-model d",
        "llama-server -m t -md d --spec-type draft-eagle4",
    ],
)
def test_a_drafter_that_nobody_has_heard_of_is_not_known(source: str) -> None:
    result = beside(source, source)
    assert result.exit_code is ExitCode.NOT_JUDGED and "none that is known" in " ".join(result.undecided)


@pytest.mark.parametrize(
    ("source", "method"),
    [
        ("vllm:-sc.method qwen3_next_mtp -sc.num_speculative_tokens 1", "mtp"),
        ("lmdeploy:--speculative-algorithm deepseek_mtp", "mtp"),
        (
            "sglang:--model-path t --speculative-algorithm NEXTN --speculative-num-steps 1 --speculative-eagle-topk 1",
            "mtp",
        ),
        ("sglang:--speculative-algorithm standalone --speculative-draft-model-path d", "draft_model"),
        ("sglang:--speculative-algorithm DFLASH --speculative-dflash-block-size 8", "dflash"),
        ('{"speculative_config": {"decoding_type": "Draft_Target", "max_draft_len": 3}}', "draft_model"),
        ('{"speculative_config": {"decoding_type": "DFlash", "max_draft_len": 3}}', "dflash"),
        ("llama-server -m t --spec-type ngram-mod", "ngram"),
    ],
)
def test_a_drafter_has_one_name_in_all_formats(source: str, method: str) -> None:
    assert read_source(source).value("method") == method


def test_a_section_alone_says_nothing_of_what_stands_around_it() -> None:
    section = read_source(SECTION)
    assert not section.terms.keys() & {"tp", "target", "dtype", "kv_dtype", "prefix_cache"}
    result = beside(SECTION, SAME)
    assert result.exit_code is ExitCode.NOT_JUDGED and len(result.undecided) == 4


@pytest.mark.parametrize(
    "source",
    [
        "vllm serve /m/target-70b --config nowhere.yaml",
        f"vllm serve /m/target-70b {AROUND} --config nowhere.yaml --speculative-config '{SECTION}'",
        SAME.replace("--tensor-parallel-size", "--tensor-parallel-sizes"),
        SAME.replace("--tensor-parallel-size", "--tensor-parallel"),
        SAME + " --speculative-draft-magic 3",
        SAME.replace('"num_speculative_tokens": 3', '"num_speculative_tokens": 3, "magic": true'),
        SAME.replace('"method": "eagle3", ', "").replace("head-eagle3", "head"),
    ],
)
def test_what_was_not_read_is_not_known(here: Path, source: str) -> None:
    config = read_source(source)
    assert config.undecided
    assert align(config, config).exit_code is ExitCode.NOT_JUDGED
    assert beside(source, SAME).exit_code in (ExitCode.NOT_JUDGED, ExitCode.FAIL)


@pytest.mark.parametrize("unset", ["$MODEL", "${TP:-4}", "{{ .Values.tp }}", "$@", "$(nproc)"])
def test_a_value_that_is_still_to_be_filled_in_is_refused(here: Path, unset: str) -> None:
    (here / "serve.yaml").write_text(f"tensor-parallel-size: '{unset}'\n")
    for source in ("serve.yaml", f"vllm serve /m/t --tensor-parallel-size '{unset}'"):
        with pytest.raises(UsageError, match="still to be filled in"):
            read_source(source)


def test_a_script_is_more_than_a_command(here: Path) -> None:
    (here / "serve.sh").write_text("#!/bin/bash\npip install vllm; vllm serve /m/t\n")
    with pytest.raises(UsageError, match="more than a command"):
        read_source("serve.sh")


def speculator(folder: Path, **changes: object) -> Path:
    (folder / "spec").mkdir()
    wanted = {
        "algorithm": "eagle3",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
        "verifier": {"name_or_path": "org/target"},
    }
    config = {
        "speculators_model_type": "eagle3",
        "speculators_config": wanted,
        "transformer_layer_config": dict(keys(DRAFT).values),
    }
    (folder / "spec" / "config.json").write_text(json.dumps({**config, **changes}))
    return folder / "spec"


def test_a_speculators_folder_that_is_served_alone_speculates(here: Path) -> None:
    speculator(here)
    alone = read_source("vllm serve spec")
    assert [alone.value(term) for term in ("method", "k", "target", "draft_model")] == ["eagle3", 3, "target", "spec"]
    spelt = "vllm serve org/target -sc.method eagle3 -sc.model spec -sc.num_speculative_tokens %d"
    assert beside("vllm serve spec", spelt % 3).exit_code is ExitCode.PASS
    assert "k" in different(beside("vllm serve spec", spelt % 4))
    assert read_source("vllm serve spec -sc.num_speculative_tokens 5").value("k") == 5


def test_a_parallel_speculator_drafts_in_one_pass(here: Path) -> None:
    speculator(here, speculators_model_type="peagle")
    config = read_source("vllm serve spec")
    assert (config.value("method"), config.value("passes")) == ("eagle3", "one for all")


@pytest.mark.parametrize("name", ["RedHatAI/Qwen3-8B-speculator.eagle3", "org/llama-eagle3-head", "org/x-DFlash-draft"])
def test_a_speculator_by_name_cannot_be_told(name: str) -> None:
    spelt = f"vllm serve Qwen/Qwen3-8B -sc.model {name} -sc.num_speculative_tokens 3 -sc.method eagle3"
    result = beside(f"vllm serve {name}", spelt)
    assert result.exit_code is ExitCode.NOT_JUDGED and "cannot be told" in " ".join(result.undecided)
    assert not result.differences
    assert beside("vllm serve Qwen/Qwen3-8B", spelt).exit_code is ExitCode.FAIL


def test_the_dtype_of_a_target_that_is_here_is_read_from_its_config(here: Path) -> None:
    (here / "t").mkdir()
    (here / "t" / "config.json").write_text(json.dumps({**keys(LLAMA).values, "torch_dtype": "bfloat16"}))
    assert beside("vllm serve t", "vllm serve t --dtype bfloat16 --kv-cache-dtype bfloat16").exit_code is ExitCode.PASS
    assert beside("vllm serve org/t", "vllm serve org/t --dtype bfloat16").exit_code is ExitCode.NOT_JUDGED


NINE = [[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0], [0, 0, 1], [0, 0, 0, 0]]


@pytest.mark.parametrize("nodes", [NINE, [[0], [0, 0]], [[0], [1], [2], [3]]])
def test_vllms_tree_is_the_same_tree_in_tensorrt_llm(nodes: list[list[int]]) -> None:
    text = str([tuple(node) for node in nodes])
    section = {
        "method": "eagle3",
        "model": "/m/h",
        "num_speculative_tokens": len(nodes),
        "speculative_token_tree": text,
    }
    ours = {"decoding_type": "Eagle3", "speculative_model": "/m/h", "eagle_choices": nodes}
    vllm, trtllm = read_source(f"vllm:{json.dumps(section)}"), read_source(f"trtllm:{json.dumps(ours)}")
    terms = ("k", "path_len", "verified", "topk", "tree", "non_leaves")
    depth = max(map(len, nodes))
    assert [vllm.value(term) for term in terms] == [trtllm.value(term) for term in terms]
    assert (vllm.value("k"), vllm.value("path_len"), vllm.value("verified")) == (depth, depth + 1, len(nodes) + 1)
    assert vllm.value("tree") == ("chain" if len(nodes) == depth else "static tree")


@pytest.mark.parametrize(("a", "b"), [("fp8", "fp8_e4m3"), ("fp8_e5m2", "fp8_e5m2")])
def test_a_dtype_has_several_names(a: str, b: str) -> None:
    around = "-tp 2 --dtype {}"
    vllm = f"vllm serve /m/t {around.format('half')} --kv-cache-dtype {a}"
    result = beside(vllm, f"sglang:--model-path /m/t --tp-size 2 --dtype float16 --kv-cache-dtype {b}")
    assert result.exit_code is ExitCode.PASS
    assert different(beside(vllm, vllm.replace(a, "int8_per_token_head"))) == {"kv_dtype"}


@pytest.mark.parametrize(
    ("source", "length"),
    [
        (f"SGLANG_SIMULATE_ACC_LEN=2.5 python3 -m sglang.launch_server {SGLANG.removeprefix('sglang:')}", 2.5),
        ("llama-server -m t -md d --spec-type draft-eagle3 --spec-synth-rates 0.8,0.5", 2.3),
        ("vllm serve t -sc.model eagle3 -sc.num_speculative_tokens 2 -sc.synthetic_acceptance_length 2.5", 2.5),
    ],
)
def test_acceptance_that_is_made_up_is_seen(source: str, length: float) -> None:
    assert read_source(source).value("forced") == pytest.approx(length)


@pytest.mark.parametrize("a", [SAME, SGLANG.replace("sglang:", "sglang serve "), "trtllm-serve /m/t --tp_size 2"])
@pytest.mark.parametrize(
    ("more", "code"),
    [
        ("--attention-backend FLASHINFER", ExitCode.NOT_JUDGED),
        ("--cpu-offload-gb 40 --block-size=32", ExitCode.NOT_JUDGED),
        ("--port 8001 --host 0.0.0.0 --served-model-name a b --enable-log-requests", ExitCode.PASS),
    ],
)
def test_a_flag_that_was_not_read_is_a_difference_unless_it_changes_no_step(a: str, more: str, code: ExitCode) -> None:
    assert beside(f"{a} {more}", a).exit_code is code
    assert beside(f"{a} {more}", f"{a} {more}").exit_code is ExitCode.PASS


@pytest.mark.parametrize("setting", ["VLLM_ATTENTION_BACKEND=FLASHINFER", "VLLM_USE_V1=0", "VLLM_ALL2ALL_BACKEND=x"])
def test_a_variable_of_the_engine_is_a_difference_too(setting: str) -> None:
    assert beside(f"{setting} {SAME}", SAME).exit_code is ExitCode.NOT_JUDGED
    assert beside(f"CUDA_VISIBLE_DEVICES=0 VLLM_LOGGING_LEVEL=DEBUG {SAME}", SAME).exit_code is ExitCode.PASS


def test_keys_of_a_file_that_were_not_read_are_compared_with_flags(here: Path) -> None:
    more = {"block-size": 32, "kv-transfer-config": {"b": 1, "a": "x"}, "port": 1, "enable-chunked-prefill": True}
    file = yaml_of(here, "serve.yaml", {**SERVE, **more})
    flags = """--block-size 32 --kv_transfer_config '{"a": "x", "b": 1}' --enable-chunked-prefill"""
    assert beside(file, f"{SAME} {flags}").exit_code is ExitCode.PASS
    assert len(beside(file, SAME).undecided) == 3


def test_flags_of_two_engines_that_were_not_read_are_notes() -> None:
    result = beside(f"{SAME} --cpu-offload-gb 40", SGLANG)
    assert any("not read: --cpu-offload-gb 40" in note for note in result.notes)


@pytest.mark.parametrize(
    ("source", "off"),
    [
        ("vllm serve t%s", "--enforce-eager"),
        ("sglang serve --model-path t%s", "--disable-cuda-graph"),
        ("lmdeploy serve api_server t%s", "--eager-mode"),
    ],
)
def test_cuda_graphs_are_off_where_they_are_switched_off(source: str, off: str) -> None:
    without, graphs = read_source(source % f" {off}"), read_source(source % "")
    assert (without.value("graphs"), graphs.value("graphs")) == (False, True)
    assert different(align(without, graphs)) == {"graphs"}
