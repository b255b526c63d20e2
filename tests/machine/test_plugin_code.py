"""The code of plug-ins from outside: every file that may decide a figure is in the hash, and no import is needed."""

from __future__ import annotations

import os
import shutil
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import EntryPoint, distribution
from pathlib import Path

import pytest

from specgate.errors import EnvironmentRefused
from specgate.machine.plugin_code import PluginCode, code_of, taking_part
from tests.support.outside import on_the_path, write_counting, write_distribution


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (place := tmp_path / "outside").mkdir()
    with on_the_path(monkeypatch, place):
        yield place


def engine(
    folder: Path, module: str = "engine", modules: tuple[str, ...] = (), requires: tuple[str, ...] = ()
) -> PluginCode:
    """The code of the back end `BACKEND` in `module`, of a distribution that is written anew."""
    entries = {"specgate.backends": {"mine": f"{module}:BACKEND"}}
    write_distribution(folder, "my-engine", entries=entries, modules=modules, requires=requires)
    (entry,) = distribution("my-engine").entry_points
    return code_of(entry)


def package(folder: Path, **files: str) -> Path:
    (made := folder / "engine").mkdir(parents=True, exist_ok=True)
    for name, text in {"__init__": "raise SystemExit('imported')\n", **files}.items():
        (made / f"{name}.py").write_text(text)
    return made


def test_every_file_of_the_package_counts_and_none_is_imported(folder: Path) -> None:
    made = package(folder, kernels="")
    (made / "cuda" / "sm90").mkdir(parents=True)
    seen = {engine(folder).said}
    for name in ("kernels.py", "_C.cpython-311-x86_64-linux-gnu.so", "cuda/step.cu", "cuda/sm90/tiles.json"):
        (made / name).write_bytes(b"\x7f" + name.encode())
        result = engine(folder)
        assert str(made / name) in result.files
        seen.add(result.said)
    (made / "kernels.py").rename(made / "renamed.py")
    seen.add(engine(folder).said)
    (made / "renamed.py").unlink()
    seen.add(engine(folder).said)
    assert len(seen) == 7
    assert "engine" not in sys.modules


def test_caches_and_hidden_files_do_not_count(folder: Path) -> None:
    made = package(folder)
    before = engine(folder)
    for name in ("__pycache__/engine.cpython-311.pyc", ".git/HEAD", ".engine.py.swp"):
        (made / name).parent.mkdir(exist_ok=True)
        (made / name).write_text("x")
    assert engine(folder) == before


def test_the_same_files_elsewhere_have_the_same_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = set()
    for name in ("one", "two"):
        package(tmp_path / name)
        with monkeypatch.context() as patch, on_the_path(patch, tmp_path / name):
            texts.add(engine(tmp_path / name).said)
    assert len(texts) == 1


def test_a_version_or_an_entry_point_alone_is_a_change(folder: Path) -> None:
    package(folder)
    before = engine(folder)
    assert before.said.startswith("my-engine 1.0, SHA-256 ")
    info = write_distribution(folder, "my-engine", entries={"specgate.backends": {"mine": "engine:OTHER"}})
    (entry,) = distribution("my-engine").entry_points
    assert code_of(entry).said != before.said
    shutil.rmtree(info)
    write_distribution(folder, "my-engine", "1.1", entries={"specgate.backends": {"mine": "engine:BACKEND"}})
    (entry,) = distribution("my-engine").entry_points
    assert code_of(entry).said == before.said.replace("my-engine 1.0", "my-engine 1.1")


def test_a_single_module_counts_with_what_lies_beside_it_in_its_distribution(folder: Path) -> None:
    for name in ("engine", "engine_ops", "unrelated"):
        (folder / f"{name}.py").write_text("")
    assert [Path(f).name for f in engine(folder).files] == ["engine.py"]
    beside = engine(folder, modules=("engine", "engine_ops")).files
    assert sorted(Path(f).name for f in beside) == ["engine.py", "engine_ops.py"]


def test_required_distributions_count_where_they_are_installed_in_place(folder: Path) -> None:
    for name in ("engine", "in_place", "deeper", "wheel_"):
        (folder / f"{name}.py").write_text("")
    write_distribution(folder, "in-place", modules=("in_place",), requires=("deeper", "my-engine"), editable=True)
    write_distribution(folder, "deeper", modules=("deeper",), editable=True)
    write_distribution(folder, "installed", modules=("wheel_",))
    result = engine(folder, requires=("in-place", "installed", "gone"))
    assert sorted(Path(file).name for file in result.files) == ["deeper.py", "engine.py", "in_place.py"]


def test_of_a_namespace_only_the_package_in_it_counts(folder: Path) -> None:
    for name in ("engine", "other"):
        (folder / "company" / name).mkdir(parents=True)
        (folder / "company" / name / "__init__.py").write_text("")
    (folder / "company" / "engine" / "backend.py").write_text("")
    files = engine(folder, "company.engine.backend", modules=("company",)).files
    assert sorted(os.path.relpath(f, folder) for f in files) == [
        "company/engine/__init__.py",
        "company/engine/backend.py",
    ]


def test_an_archive_counts_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "engine.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("engine/__init__.py", "")
    monkeypatch.syspath_prepend(archive)
    entry = EntryPoint("mine", "engine:BACKEND", "specgate.backends")
    assert list(code_of(entry).files) == [str(archive)]


def test_links_are_followed_once(folder: Path) -> None:
    made = package(folder)
    (folder / "kernels").mkdir()
    (folder / "kernels" / "step.cu").write_text("")
    (made / "cuda").symlink_to(folder / "kernels")
    (made / "again").symlink_to(made)
    (made / "gone.py").symlink_to(folder / "nowhere")
    os.mkfifo(made / "pipe")
    assert [Path(f).name for f in engine(folder).files] == ["__init__.py", "step.cu"]


def test_a_file_that_cannot_be_read_is_refused_by_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = package(folder)

    def locked(file: str, mode: str = "r") -> object:
        raise PermissionError(13, "Permission denied", file)

    monkeypatch.setattr("builtins.open", locked)  # root may read everything
    with pytest.raises(EnvironmentRefused, match=rf"{made}/__init__\.py: cannot be read: Permission denied"):
        engine_entry = EntryPoint("mine", "engine:BACKEND", "specgate.backends")
        code_of(engine_entry)


def test_a_module_that_is_nowhere_is_said_to_have_no_files() -> None:
    entry = EntryPoint("gone", "no_such_module_anywhere:X", "specgate.gates")
    assert code_of(entry) == PluginCode("plugin:gate:gone", "no distribution, no files found", {}, ())


def test_requirements_are_named_without_bounds_and_markers(folder: Path) -> None:
    package(folder)
    stated = ("specgate-bench", "my-kernels>=2,<3", "flash_attn (>=2)", "torch[x]; extra == 'gpu'")
    assert engine(folder, requires=stated).requires == ("my-kernels", "flash_attn", "torch")


def test_only_plug_ins_from_outside_that_take_part_are_looked_at(folder: Path) -> None:
    write_counting(folder)
    assert [code.key for code in taking_part(["reference", "counting"], ["tokens"])] == ["plugin:backend:counting"]
    assert taking_part(["fake"], ["tokens"]) == []
    entries = {"specgate.gates": {"p90": "judging:GATE", "p99": "judging:GATE"}, "specgate.reports": {"prom": "page:R"}}
    write_distribution(folder, "judging", entries=entries)
    from specgate import plugins

    plugins.registered.cache_clear()
    assert [code.key for code in taking_part(["fake"], ["tokens", "p90"])] == ["plugin:gate:p90", "plugin:report:prom"]
