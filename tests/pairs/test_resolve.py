from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models

from specgate.backends.eagle3.pairs.shipped import target_folder
from specgate.contract import PairRef
from specgate.errors import CheckpointError, UsageError
from specgate.pairs.resolve import refuse_two_names, resolve_pair, served_pair, target_limits
from tests.pairs.tiny import write_random_pair


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECGATE_CACHE", str(tmp_path / "cache"))


def checkpoint(folder: Path, **config: object) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_folders_on_the_command_line_are_the_pair(tmp_path: Path) -> None:
    target, draft = checkpoint(tmp_path / "big"), checkpoint(tmp_path / "small")
    assert resolve_pair("demo", target, draft) == PairRef("big", target, draft, acceptance="real")


def test_a_target_without_a_draft_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--target .*big: no draft given\n.*--draft DIR"):
        resolve_pair(None, checkpoint(tmp_path / "big"), None)


def test_a_folder_that_does_not_exist_is_named_with_its_option(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--draft .*nowhere: no such folder"):
        resolve_pair(None, checkpoint(tmp_path / "big"), tmp_path / "nowhere")


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"--target .*empty: holds no config\.json"):
        resolve_pair(None, tmp_path / "empty", tmp_path / "empty")


def test_an_unknown_pair_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"pair 'dmeo' is not known, and no folder.*\n.*known: demo"):
        resolve_pair("dmeo", None, None)


def test_a_draft_alone_goes_with_the_demo_target(tmp_path: Path) -> None:
    target_folder().mkdir(parents=True)
    pair = resolve_pair(None, None, checkpoint(tmp_path / "mine"))
    assert (pair.name, pair.target, pair.draft) == ("demo+mine", target_folder(), tmp_path / "mine")


def test_the_target_limits_is_that_of_the_config_or_of_the_rope_override(tmp_path: Path) -> None:
    target, _ = write_random_pair(tmp_path, seed=0, positions=8192)
    pair = PairRef("p", target, None)
    assert target_limits(pair, None) == (8192, 320)
    assert target_limits(pair, {"rope_type": "yarn", "factor": 4.0}) == (32768, 320)


def test_a_config_without_a_target_limits_is_refused(tmp_path: Path) -> None:
    target, _ = write_random_pair(tmp_path, seed=0)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, "max_position_embeddings": "8K"}))
    with pytest.raises(CheckpointError, match="max_position_embeddings"):
        target_limits(PairRef("p", target, None), None)


def test_a_target_of_another_architecture_has_limits_for_engines_that_read_it_by_themselves(tmp_path: Path) -> None:
    config = {"architectures": ["GemmaForCausalLM"], "vocab_size": 201088, "num_hidden_layers": 24}
    pair = PairRef("p", checkpoint(tmp_path / "oss", **config, max_position_embeddings=131072), None)
    assert target_limits(pair, None, any_architecture=True) == (131072, 201088)
    with pytest.raises(CheckpointError, match=r"architectures = .*Gemma"):
        target_limits(pair, None)


def test_a_served_pair_is_known_by_its_tokenizer_whatever_the_file_is_called(tmp_path: Path) -> None:
    named = tmp_path / "tokenizer.json"
    Tokenizer(models.WordLevel({"a": 0, "b": 41}, unk_token="a")).save(str(named))
    pair = served_pair(tmp_path)
    assert (pair.name, pair.draft, pair.weights, pair.tokenizer) == ("served", None, "server", named)
    other = named.rename(tmp_path / "of-qwen.json")
    assert served_pair(other).tokenizer == other and target_limits(served_pair(other), None) == (None, 42)
    with pytest.raises(UsageError, match=r"tokenizer\.json does not exist"):
        served_pair(tmp_path)
    with pytest.raises(UsageError, match=r"not a \.json file"):
        served_pair(other.rename(tmp_path / "of-qwen.model"))


@pytest.mark.parametrize("named", [{"pair": "demo"}, {"target": Path("t")}, {"draft": Path("d")}])
def test_a_tokenizer_stands_for_the_pair_and_not_beside_it(named: dict[str, Any]) -> None:
    given = {"pair": None, "target": None, "draft": None, **named}
    with pytest.raises(UsageError, match="--tokenizer together with"):
        refuse_two_names(**given, tokenizer=Path("tokenizer.json"))
    refuse_two_names(None, None, None, Path("tokenizer.json"))
