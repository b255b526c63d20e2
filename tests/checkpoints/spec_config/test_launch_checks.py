"""Checks right before an engine is loaded or a server is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from specgate.checkpoints.spec_config.launch_checks import check_chain, check_command, check_mapping
from specgate.errors import UsageError
from tests.checkpoints.spec_config.test_sizes import TARGET, WINDOWED

VLLM = ("vllm", "serve", "T", "--speculative-config", '{"method": "eagle3", "model": "D", "num_speculative_tokens": 3}')
SGLANG = ("python3", "-m", "sglang.launch_server", "--speculative-algorithm", "EAGLE3", "--speculative-num-steps", "3")


def test_a_command_that_fits_its_role_passes() -> None:
    check_command("vllm", VLLM, 3, "vllm spec-3")
    check_command("vllm", ("vllm", "serve", "T"), 0, "vllm baseline")
    check_command("sglang", (*SGLANG, "--speculative-eagle-topk", "1"), 3, "sglang spec-3")
    check_command("another", ("--anything",), 3, "an engine whose flags nobody knows")


def test_flags_that_name_another_pair_are_refused() -> None:
    other = (*VLLM, "--speculative-config", '{"method": "eagle3", "model": "OTHER", "num_speculative_tokens": 3}')
    with pytest.raises(UsageError, match=r"spec-3: .*model = OTHER, the pair has D"):
        check_command("vllm", other, 3, "vllm spec-3", VLLM)
    with pytest.raises(UsageError, match="= U, the pair has T"):
        check_command("sglang", (*SGLANG, "--model-path", "U"), 3, "sglang spec-3", (*SGLANG, "--model-path", "T"))
    check_command("vllm", (*VLLM, "--dtype", "float16"), 3, "vllm spec-3", VLLM)


def test_a_tree_is_described_and_its_paths_have_the_roles_length(tmp_path: Path) -> None:
    wide = (*SGLANG, "--speculative-eagle-topk", "4", "--speculative-num-draft-tokens", "9")
    assert check_command("sglang", wide, 3, "sglang spec-3") == "dynamic tree of up to 8 draft tokens"
    assert check_command("vllm", VLLM, 3, "vllm spec-3") is None
    with pytest.raises(UsageError, match="= 3, the role asks for 4"):
        check_command("sglang", wide, 4, "sglang spec-4")
    draft = {"method": "eagle3", "model": str(tmp_path), "num_speculative_tokens": 3}
    assert check_mapping("turbomind", draft, 3, "spec-3") is None
    assert check_mapping("turbomind", {**draft, "enable_target_tree": True}, 3, "spec-3") == (
        "target tree of up to 5 draft tokens"
    )
    (tmp_path / "eagle_tree.yaml").write_text("choices: [[0], [1], [0, 0]]\n")
    assert check_mapping("turbomind", {**draft, "max_decoding_tokens": 8}, 3, "spec-3") == (
        "static tree of up to 7 draft tokens"
    )
    with pytest.raises(UsageError, match="max_path_len = 2 is less than num_speculative_tokens = 3"):
        check_mapping("turbomind", {**draft, "max_path_len": 2}, 3, "spec-3")


@pytest.mark.parametrize(
    ("engine", "argv", "k", "message"),
    [
        (
            "vllm",
            (*VLLM, *VLLM[3:4], '{"method": "eagle3", "num_speculative_tokens": 5}'),
            3,
            "= 5, the role asks for 3",
        ),
        ("vllm", VLLM, 0, "its flags ask for speculation"),
        ("vllm", ("vllm", "serve", "T"), 3, "it does not ask for speculation"),
        ("vllm", (*VLLM, "--speculative-config", "3"), 3, "an object is needed"),
        ("sglang", (*SGLANG, "--speculative-num-steps", "7"), 3, "--speculative-num-steps = 7, the role asks for 3"),
    ],
)
def test_flags_that_ask_for_something_else_are_refused(
    engine: str, argv: tuple[str, ...], k: int, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        check_command(engine, argv, k, f"{engine} spec-{k}")


@pytest.mark.parametrize(
    ("engine", "text", "start"),
    [
        ("vllm", "speculative-config: {method: eagle3, model: /d, num_speculative_tokens: 3}", ["vllm", "serve", "T"]),
        (
            "sglang",
            "speculative-algorithm: EAGLE3\nspeculative-num-steps: 3",
            ["python3", "-m", "sglang.launch_server"],
        ),
        ("trtllm", "speculative_config: {decoding_type: Eagle, max_draft_len: 3}", ["trtllm-serve", "T"]),
    ],
)
def test_a_baseline_that_speculates_by_its_file_is_refused(
    tmp_path: Path, engine: str, text: str, start: list[str]
) -> None:
    (file := tmp_path / "serve.yaml").write_text(f"{text}\n")
    (plain := tmp_path / "plain.yaml").write_text("dtype: bfloat16\n")
    with pytest.raises(UsageError, match="its flags ask for speculation"):
        check_command(engine, (*start, "--config", str(file)), 0, "baseline")
    with pytest.raises(UsageError, match="no such file"):
        check_command(engine, (*start, "--config", str(tmp_path / "none.yaml")), 0, "baseline")
    check_command(engine, (*start, "--config", str(plain)), 0, "baseline")


@pytest.mark.parametrize(
    ("engine", "argv"),
    [
        ("vllm", ("vllm", "serve", "T", "-sc.method", "ngram", "-sc.num_speculative_tokens", "3")),
        ("vllm", ("vllm", "serve", "T", "--spec-model", "D", "--spec-tokens", "3")),
        ("vllm", ("vllm", "serve", "T", "--speculative-unheard-of", "3")),
        ("llamacpp", ("llama-server", "-m", "T", "--spec-default")),
        ("lmdeploy", ("lmdeploy", "serve", "api_server", "T", "--speculative-algorithm", "eagle3")),
    ],
)
def test_a_baseline_must_be_known_not_to_speculate(engine: str, argv: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        check_command(engine, argv, 0, "baseline")


def test_the_yaml_file_of_a_server_is_looked_into(tmp_path: Path) -> None:
    (file := tmp_path / "t.yaml").write_text("speculative_config: {decoding_type: Eagle3, max_draft_len: 3}\n")
    argv = ("trtllm-serve", "T", "--config", str(file))
    check_command("trtllm", argv, 3, "trtllm spec-3")
    with pytest.raises(UsageError, match=r"max_draft_len = 3, the role asks for 2"):
        check_command("trtllm", argv, 2, "trtllm spec-2")
    with pytest.raises(UsageError, match="no such file"):
        check_command("trtllm", (*argv[:3], str(tmp_path / "none.yaml")), 3, "trtllm spec-3")


def test_a_config_that_the_engine_must_agree_with_is_held_against_the_role(tmp_path: Path) -> None:
    (file := tmp_path / "spec.json").write_text(
        '{"num_speculative_tokens": 3, "max_path_len": 4, "max_decoding_tokens": 16}'
    )
    with pytest.raises(UsageError, match=r"option spec_config = .*: tree of up to 15 draft tokens"):
        check_chain(3, "spec-3", {"spec_config": str(file)})
    file.write_text('{"num_speculative_tokens": 3, "max_path_len": 5, "max_decoding_tokens": 4}')
    with pytest.raises(UsageError, match="max_path_len = 5 is more than max_decoding_tokens = 4"):
        check_chain(3, "spec-3", {"spec_config": str(file)})
    file.write_text('{"num_speculative_tokens": 3, "max_path_len": 4, "max_decoding_tokens": 4}')
    check_chain(3, "spec-3", {"spec_config": str(file)})


def test_a_config_of_another_number_of_gpus_is_not_the_engines(tmp_path: Path) -> None:
    (file := tmp_path / "spec.json").write_text('{"num_speculative_tokens": 3, "max_path_len": 4, "tp": 2}')
    options = {"spec_config": str(file)}
    check_chain(3, "spec-3", options, tp=2, most_tp=4)
    check_chain(3, "spec-3", options)  # of an engine that does not know
    with pytest.raises(UsageError, match="tp = 2, the engine runs with tp = 1"):
        check_chain(3, "spec-3", options, tp=1, most_tp=4)
    with pytest.raises(UsageError, match="several drafts need tp = 1"):
        check_chain(3, "spec-3", {}, tp=2)
    file.write_text('{"num_speculative_tokens": 3, "max_path_len": 4}')
    check_chain(3, "spec-3", options, tp=2, most_tp=4)  # it says nothing of that


def test_the_limits_of_the_pair_are_part_of_the_check() -> None:
    with pytest.raises(UsageError, match="2049 positions are needed"):
        check_chain(3, "spec-3", {}, target=TARGET, positions=2049)
    with pytest.raises(UsageError, match="in a draft window of 4"):
        check_chain(5, "spec-5", {}, draft=WINDOWED)
