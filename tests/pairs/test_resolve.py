from __future__ import annotations

import json
from pathlib import Path

import pytest

from specgate.core import PairRef
from specgate.eagle3.tiny import write_random_pair
from specgate.errors import CheckpointError, UsageError
from specgate.pairs.demo import target_folder
from specgate.pairs.resolve import resolve_pair, target_limits


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
