"""The packages of docs/examples: where they are, their module without an installation, and all of them installed."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

from tests.support.command import ROOT

FOLDERS = tuple(sorted(file.parent for file in (ROOT / "docs" / "examples").glob("*/pyproject.toml")))
MODULES = tuple(file.stem for folder in FOLDERS for file in folder.glob("*.py"))


def module_of(kind: str) -> ModuleType:
    """The one module of `docs/examples/KIND-plugin`."""
    (file,) = (ROOT / "docs" / "examples" / f"{kind}-plugin").glob("*.py")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def install(work: Path) -> Path:
    """A folder for PYTHONPATH that holds all of them, metadata included; built from copies, without an index."""
    sources = [shutil.copytree(folder, work / "sources" / folder.name) for folder in FOLDERS]
    options = ("--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation", "--no-index")
    target = work / "installed"
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(target), *map(str, sources)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return target
