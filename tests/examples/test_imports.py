"""Examples show what an author outside may import: they keep to the public rooms."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.support.example_packages import FOLDERS
from tests.support.imports import imports_of

PUBLIC = ("errors", "redaction", "contract", "files", "analysis", "checkpoints")
MACHINE = "machine"
"""For engines alone."""


def test_there_is_one_of_each() -> None:
    assert [folder.name for folder in FOLDERS] == ["backend-plugin", "gate-plugin", "report-plugin"]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda f: f.name)
def test_an_example_imports_public_rooms_only(folder: Path) -> None:
    allowed = (*PUBLIC, MACHINE) if folder.name == "backend-plugin" else PUBLIC
    (module,) = folder.glob("*.py")
    of_specgate = [name for name in imports_of(module) if name.split(".")[0] == "specgate"]
    assert of_specgate
    for name in of_specgate:
        assert name.split(".")[1] in allowed, f"{module.name} imports {name}"


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda f: f.name)
def test_an_example_is_a_package_with_one_module_and_a_page(folder: Path) -> None:
    (module,) = folder.glob("*.py")
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    kind = folder.name.removesuffix("-plugin")
    (entry,) = project["project"]["entry-points"][f"specgate.{kind}s"].values()
    assert entry == f"{module.stem}:{kind.upper()}"
    assert 10 <= len((folder / "README.md").read_text(encoding="utf-8").splitlines()) <= 30
