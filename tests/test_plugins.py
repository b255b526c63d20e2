"""The plug-in door: built-ins and third parties come in alike, and what does not fit is named."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specgate import plugins
from specgate.contract.protocols import Availability, Backend, Engine, Gate, OpenRequest, Report
from specgate.errors import EnvironmentRefused, UsageError
from tests.support.command import ROOT


class Lame:
    name = "lame"
    description = "cannot run"

    def available(self) -> Availability:
        return Availability(False, "has no legs")

    def open(self, request: OpenRequest) -> Engine:
        raise AssertionError(request)


LAME: Backend = Lame()
NOT_A_BACKEND = object()


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    plugins.registered.cache_clear()
    yield
    plugins.registered.cache_clear()


def third_party(monkeypatch: pytest.MonkeyPatch, *entries: tuple[str, str]) -> None:
    result = [EntryPoint(name, f"{__name__}:{value}", "specgate.backends") for name, value in entries]
    monkeypatch.setattr(plugins, "entry_points", lambda group: result if group == "specgate.backends" else [])


@pytest.mark.parametrize(
    ("group", "kind"), [("specgate.backends", Backend), ("specgate.gates", Gate), ("specgate.reports", Report)]
)
def test_every_built_in_is_what_its_group_promises(group: str, kind: type) -> None:
    for name, entry in plugins.registered(group).items():
        plugin: Any = entry.load()
        assert plugin.name == name
        assert isinstance(plugin, kind)


@pytest.mark.engine
def test_a_misspelt_name_gets_the_nearest_one() -> None:
    with pytest.raises(UsageError, match="did you mean 'reference'"):
        plugins.backend("refrence")


@pytest.mark.parametrize(
    ("name", "hint"), [("nope", "known: "), ("tensorrt", "known: "), ("vLLM", "did you mean 'vllm'? known: ")]
)
def test_a_name_that_is_like_no_other_gets_the_list_alone(name: str, hint: str) -> None:
    with pytest.raises(UsageError) as error:
        plugins.backend(name)
    assert str(error.value.hint).startswith(hint)


def test_a_third_partys_back_end_is_loaded_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    third_party(monkeypatch, ("lame", "LAME"))
    assert plugins.backend_here("lame") is LAME
    assert plugins.backends_available()["lame"][1] == Availability(False, "has no legs")


def test_a_plug_in_that_lacks_methods_is_refused_with_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    third_party(monkeypatch, ("odd", "NOT_A_BACKEND"))
    with pytest.raises(UsageError, match=r"not a Backend: it lacks .*open"):
        plugins.backend("odd")


def test_a_plug_in_that_cannot_be_imported_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    third_party(monkeypatch, ("gone", "NO_SUCH_NAME"))
    with pytest.raises(UsageError, match=r"gone .*cannot be loaded"):
        plugins.backend("gone")


@pytest.mark.engine
def test_two_plug_ins_of_one_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    third_party(monkeypatch, ("reference", "LAME"))
    with pytest.raises(UsageError, match="already has the name 'reference'"):
        plugins.registered("specgate.backends")


@pytest.mark.engine
def test_an_empty_load_list_leaves_the_built_ins_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    third_party(monkeypatch, ("lame", "LAME"))
    monkeypatch.setenv("SPECGATE_LOAD_PLUGINS", "")
    assert "lame" not in plugins.registered("specgate.backends")
    assert "reference" in plugins.registered("specgate.backends")


@pytest.mark.engine
def test_the_fake_engine_is_never_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert plugins.default_backend().name == "reference"
    monkeypatch.setattr("specgate.backends.eagle3.reference.backend.find_spec", lambda name: None)
    with pytest.raises(EnvironmentRefused, match="torch is not installed"):
        plugins.default_backend()


def test_nothing_is_loaded_from_the_working_folder_but_from_the_checkout_that_runs(tmp_path: Path) -> None:
    for name in ("torch", "yaml", "click", "evil"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('loaded from the working folder')\n")
    metadata = tmp_path / "evil-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[specgate.backends]\nevil = evil:BACKEND\n")
    without = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    for folder, environment in ((tmp_path, {**without, "PYTHONPATH": str(ROOT)}), (ROOT, without)):
        command = [sys.executable, "-m", "specgate", "machine", "backends"]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0 and "fake" in done.stdout and "evil" not in done.stdout, done.stdout + done.stderr


def test_metadata_in_the_checkout_declares_no_plug_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for place, known in ((ROOT, False), (tmp_path, True)):
        entry = EntryPoint("lame", f"{__name__}:LAME", "specgate.backends")
        vars(entry).update(dist=SimpleNamespace(name="lame", locate_file=lambda path, place=place: place / path))
        monkeypatch.setattr(plugins, "entry_points", lambda group, entry=entry: [entry])
        plugins.registered.cache_clear()
        assert ("lame" in plugins.registered("specgate.backends")) == known
