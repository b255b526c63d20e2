"""Facts in the files of a pair: sizes, the vocabulary map, tokenizers, weights. Bad files cost no more than a line."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from specgate.contract import PairRef
from specgate.errors import UsageError
from specgate.run.smoke.pair_configs import configs_of, tokenizers, wrong_weights
from specgate.run.smoke.prompt import PromptWish, prompt_ids


@pytest.fixture
def copied(pair: tuple[Path, Path], tmp_path: Path) -> PairRef:
    for folder in pair:
        shutil.copytree(folder, tmp_path / folder.name)
    return PairRef("tiny", tmp_path / pair[0].name, tmp_path / pair[1].name)


def test_the_sizes_of_both_are_read(copied: PairRef) -> None:
    configs = configs_of(copied)
    target = json.loads((copied.target / "config.json").read_text())
    assert configs.target_hidden == target["hidden_size"] and configs.target_vocab == target["vocab_size"]
    assert (configs.made_for_hidden, configs.vocabulary_map, configs.tokenizers) == (configs.target_hidden, "", None)
    assert configs.boundaries is not None and not configs.unreadable


def test_a_nested_config_of_an_architecture_that_nobody_knows_is_enough(copied: PairRef) -> None:
    text = {"hidden_size": 64, "vocab_size": 300, "num_hidden_layers": 9, "max_position_embeddings": 77}
    (copied.target / "config.json").write_text(json.dumps({"architectures": ["New"], "text_config": text}))
    configs = configs_of(copied)
    assert (configs.target_hidden, configs.target_layers, configs.target_positions) == (64, 9, 77)


def test_a_bad_file_is_said_and_costs_no_more(copied: PairRef) -> None:
    assert copied.draft is not None
    (copied.draft / "config.json").write_text("{")
    configs = configs_of(copied)
    assert configs.target_hidden is not None and configs.draft_vocab is None
    assert len(configs.unreadable) == 1 and "config.json" in configs.unreadable[0]


def test_a_map_of_ids_in_place_of_offsets_is_found(copied: PairRef) -> None:
    from safetensors.torch import load_file, save_file
    from torch import arange

    assert copied.draft is not None
    file = copied.draft / "model.safetensors"
    weights = load_file(file)
    save_file({**weights, "d2t": weights["d2t"] + arange(len(weights["d2t"]))}, file)
    assert "absolute target ids" in (configs_of(copied).vocabulary_map or "")


def write_tokenizer(folder: Path, words: list[str]) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    vocab = {word: number for number, word in enumerate([*words, "a"])}
    folder.mkdir(exist_ok=True)
    Tokenizer(WordLevel(vocab, unk_token="a")).save(str(folder / "tokenizer.json"))


def test_tokenizers_are_compared_token_by_token(tmp_path: Path) -> None:
    for name, words in (("target", ["x", "y"]), ("same", ["x", "y"]), ("other", ["y", "x"])):
        write_tokenizer(tmp_path / name, words)
    assert tokenizers(tmp_path / "target" / "tokenizer.json", tmp_path / "same") == ""
    assert tokenizers(tmp_path / "target" / "tokenizer.json", tmp_path / "none") is None
    assert "2 tokens have other ids" in (tokenizers(tmp_path / "target" / "tokenizer.json", tmp_path / "other") or "")


def test_weights_of_zeros_and_of_no_numbers_are_named(copied: PairRef) -> None:
    from safetensors.torch import load_file, save_file

    assert copied.draft is not None and wrong_weights(copied.draft) == ""
    file = copied.draft / "model.safetensors"
    weights = load_file(file)
    save_file({**weights, "fc.weight": weights["fc.weight"] * 0, "norm.weight": weights["norm.weight"] / 0}, file)
    assert wrong_weights(copied.draft) == "not finite: norm.weight; all zero: fc.weight"


def test_a_prompt_of_text_needs_a_tokenizer_and_one_of_ids_does_not(copied: PairRef) -> None:
    (copied.target / "tokenizer.json").unlink()
    with pytest.raises(UsageError, match=r"tokenizer\.json: no such file"):
        prompt_ids(PromptWish(text="a text"), copied)
    assert prompt_ids(PromptWish(ids=(1, 2, 3)), copied) == (1, 2, 3)


def test_a_planted_pair_gets_random_ids_and_no_text(copied: PairRef) -> None:
    planted = replace(copied, acceptance="planted")
    assert len(prompt_ids(PromptWish(context=40), planted)) == 40
    assert prompt_ids(PromptWish(), planted) == prompt_ids(PromptWish(), planted)
    with pytest.raises(UsageError, match="has no tokenizer"):
        prompt_ids(PromptWish(text="a text"), planted)
