"""Pairs that were converted for TurboMind: sizes, weights, hashes, and what is wrong with them."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from specgate.checkpoints.arrays import arrays_of_folder
from specgate.checkpoints.auxiliary_layers import resolve_boundaries
from specgate.checkpoints.files import checkpoint_sha256
from specgate.checkpoints.turbomind import read_either
from specgate.cli import cli
from specgate.errors import CheckpointError, UsageError
from specgate.pairs.resolve import resolve_pair
from tests.support.engines.converted import convert_draft, convert_target, edit_config, write_sparse_gpt_oss
from tests.support.engines.house import write_configs

HEAD_OUTPUT = "layers.0.attention.wo.weight"


@pytest.fixture(scope="module")
def gpt_oss(tmp_path_factory: pytest.TempPathFactory) -> Path:
    write_sparse_gpt_oss(folder := tmp_path_factory.mktemp("gpt-oss-120b-eagle3-tm-draft"))
    return folder


@pytest.fixture
def converted(tmp_path: Path) -> tuple[Path, Path]:
    target, draft = write_configs(tmp_path / "hf")
    return convert_target(target, tmp_path / "target"), convert_draft(draft, tmp_path / "draft")


def diagnosed(pair: tuple[Path, Path], code: int) -> str:
    target, draft = map(str, pair)
    done = CliRunner().invoke(cli, ["diagnose", "pair", "--target", target, "--draft", draft])
    assert done.exit_code == code, done.output
    return " ".join(done.output.split())


def test_the_draft_of_gpt_oss_is_read_although_its_heads_are_wider_than_it(gpt_oss: Path) -> None:
    config = read_either(gpt_oss)
    assert [config.count(key) for key in ("hidden_size", "num_key_value_heads", "head_dim")] == [2880, 8, 64]
    assert resolve_boundaries(config, 36).boundaries == (2, 18, 33)
    arrays = arrays_of_folder(gpt_oss)
    assert arrays["eagle3.q_proj.weight"].shape == (4096, 5760) and arrays["eagle_fc.weight"].shape == (8640, 2880)
    assert {array.dtype for array in arrays.values()} == {"BF16"}


@pytest.mark.parametrize(
    ("changes", "message", "hint"),
    [
        ({"eagle_q_size": 2880}, "model_config.eagle_q_size = 2880", "4096 would be right: head_num × size_per_head"),
        ({"eagle_qkv_in_dim": 2880}, "model_config.eagle_qkv_in_dim = 2880", "5760 would be right: 2 × eagle_draft"),
        ({"eagle_fc_in_dim": 5760}, "model_config.eagle_fc_in_dim = 5760", "8640 would be right: captured layers"),
        ({"eagle_capture_layers": ...}, "model_config.eagle_capture_layers is missing", r"\[1, 17, 32\]"),
        ({"eagle_num_capture_layers": 2}, "eagle_num_capture_layers = 2", "3 would be right"),
        ({"eagle_kv_size": 500}, "eagle_kv_size = 500", "size_per_head = 64"),
        ({"eagle_weight_dtype": "fp8"}, 'eagle_weight_dtype = "fp8"', "bf16 or fp16"),
        ({"head_num": ...}, "model_config.head_num is missing", "a positive integer"),
        ({"hidden_units": "wide"}, 'model_config.hidden_units = "wide"', "a positive integer"),
        ({"draft_vocab_size": 300000}, "draft_vocab_size = 300000", "at most vocab_size = 201088"),
        (dict.fromkeys(("eagle_q_size", "eagle_qkv_in_dim", "eagle_fc_in_dim"), ...), "eagle_q_size", "EagleNet"),
        ({"inter_size": 16384}, "w1.weight has 99532800 bytes", "model_config.inter_size = 17280 would fit the files"),
        ({"vocab_size": 200000}, "tok_embeddings.weight has", "model_config.vocab_size = 201088 would fit the files"),
        ({"eagle_kv_size": 1024}, "eagle3.k_proj.weight has", "model_config.eagle_kv_size = 512 would fit the files"),
        ({"draft_vocab_size": 32000}, "weights missing: lm_head_draft.weight, draft_id_to_target_id", "convert"),
    ],
)  # fmt: skip
def test_a_config_that_contradicts_itself_or_the_weights_is_named_with_the_right_value(
    gpt_oss: Path, tmp_path: Path, changes: dict[str, object], message: str, hint: str
) -> None:
    folder = tmp_path / "draft"
    shutil.copytree(gpt_oss, folder, copy_function=os.link)
    (folder / "config.yaml").unlink()
    shutil.copy(gpt_oss / "config.yaml", folder)
    edit_config(folder, **changes)
    with pytest.raises(CheckpointError) as caught:
        arrays_of_folder(folder)
    assert str(folder) in caught.value.message and message in caught.value.message
    assert re.search(hint, caught.value.hint or ""), caught.value.hint


def test_files_that_are_missing_or_short_are_named_with_their_sizes(converted: tuple[Path, Path]) -> None:
    target, draft = converted
    os.truncate(draft / HEAD_OUTPUT, 100)
    with pytest.raises(CheckpointError, match=r"wo\.weight has 100 bytes, eagle_q_size \(64\) × .* are 8192") as caught:
        arrays_of_folder(draft)
    assert caught.value.hint == "cut short, or of another draft: convert the draft again"
    (draft / HEAD_OUTPUT).unlink()
    assert f"weights missing: {HEAD_OUTPUT}" in diagnosed(converted, 1)
    (draft / "config.yaml").write_text("model_config: [\n")
    with pytest.raises(CheckpointError, match=r"config\.yaml"):
        resolve_pair(None, target, draft)


def test_the_name_with_the_number_of_the_only_gpu_is_a_weights_name_too(converted: tuple[Path, Path]) -> None:
    draft = converted[1]
    (draft / HEAD_OUTPUT).rename(draft / "layers.0.attention.wo.0.weight")
    assert arrays_of_folder(draft)[HEAD_OUTPUT].file.name == "layers.0.attention.wo.0.weight"


def test_a_converted_pair_fits(converted: tuple[Path, Path]) -> None:
    assert "0 of 6 checks found a fault" in diagnosed(converted, 0)


@pytest.mark.parametrize(
    ("spoil", "seen"),
    [
        (lambda t, d: edit_config(d, vocab_size=512, draft_vocab_size=96), "vocab_size = 320 would fit"),
        (lambda t, d: np.zeros(64 * 192, "<u2").tofile(d / "eagle_fc.weight"), "all zero: eagle_fc.weight"),
        (lambda t, d: np.full(96, 7, "<i4").tofile(d / "draft_id_to_target_id"), "to 1 target tokens"),
        (lambda t, d: edit_config(d, eagle_capture_layers=[1, 17, 32]), "boundaries 0 to 4"),
        (lambda t, d: edit_config(t / "triton_models/weights", num_layer=6), "num_layer = 6"),
        (
            lambda t, d: (t / "triton_models/weights/layers.2.ffn_norm.weight").unlink(),
            "layers.2.ffn_norm.weight is missing, in 3 of 4 layers it has 128",
        ),
        (lambda t, d: os.truncate(t / "triton_models/weights/layers.1.ffn_norm.weight", 5), "has 5 bytes, in 3 of 4"),
        (lambda t, d: (t / "triton_models/weights/output.0.weight").unlink(), "output.weight is missing"),
    ],
)
def test_each_fault_of_a_converted_pair_is_found(
    converted: tuple[Path, Path], spoil: Callable[[Path, Path], object], seen: str
) -> None:
    spoil(*converted)
    assert seen in diagnosed(converted, 1)


def test_the_hash_is_of_every_file_of_both(converted: tuple[Path, Path]) -> None:
    def hashes() -> list[str]:
        return [checkpoint_sha256(folder, []) for folder in converted]

    before = hashes()
    (converted[1] / "eagle_tree.yaml").write_text("choices: [[0]]\n")
    edit_config(converted[0] / "triton_models/weights", rope="other")
    assert not {*before} & {*hashes()}


def test_a_folder_without_either_config_is_refused_with_what_is_missing(converted: tuple[Path, Path]) -> None:
    target, draft = converted
    with pytest.raises(UsageError, match=r"--target .*draft: holds no config\.json"):
        resolve_pair(None, draft, draft)
    (target / "config.json").unlink()
    with pytest.raises(UsageError, match=r"holds triton_models/weights, but no config\.json"):
        resolve_pair(None, target, draft)


def test_a_converted_draft_is_the_head_that_it_was_made_from(tmp_path: Path) -> None:
    head = write_configs(tmp_path / "hf")[1]
    draft = convert_draft(head, tmp_path / "draft")
    text = '{"method": "eagle3", "num_speculative_tokens": 3, "model": "%s"}'
    sides = [f"turbomind:{text % draft}", f"turbomind:{text % head}"]
    done = CliRunner().invoke(cli, ["diagnose", "configs", *sides])
    assert done.exit_code == 0 and "draft (the same content)" in " ".join(done.output.split()), done.output
    np.full(64 * 192, 0x4000, "<u2").tofile(draft / "eagle_fc.weight")
    done = CliRunner().invoke(cli, ["diagnose", "configs", *sides])
    assert done.exit_code == 1 and "the weights differ, in fc.weight first" in " ".join(done.output.split())
