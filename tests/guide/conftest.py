"""The wheel of this checkout, made once, and an environment that has nothing of the checkout but that."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.command import ROOT

MadeOnce = Callable[[str, Callable[[Path], object]], Path]
PARTS = ("specgate", "backends", "gates", "reports", "scenarios", "pyproject.toml", "README.md", "LICENSE")
"""What a wheel is made from."""


@pytest.fixture(scope="session")
def wheel(made_once: MadeOnce, tmp_path_factory: pytest.TempPathFactory) -> Path:
    def made(folder: Path) -> None:
        folder.mkdir()
        build_wheel(copied(ROOT, tmp_path_factory.mktemp("source")), folder)

    (wheel,) = made_once("wheel", made).glob("*.whl")
    return wheel


@pytest.fixture(scope="session")
def site(wheel: Path, made_once: MadeOnce) -> Path:
    """The wheel as an installer leaves it: a folder for PYTHONPATH."""
    return made_once("site", lambda folder: unpack(wheel, folder))


@pytest.fixture(scope="session")
def environment(site: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """With `specgate` and `python` on the PATH, as in the guide, and an empty HOME. Its packages are the tests'."""
    programs = tmp_path_factory.mktemp("bin")
    for name, line in (
        ("specgate", f'PYTHONPATH={site} exec {sys.executable} -P -m specgate "$@"'),
        ("python", f'exec {sys.executable} "$@"'),
    ):
        (programs / name).write_text(f"#!/bin/sh\n{line}\n")
        (programs / name).chmod(0o755)
    home = tmp_path_factory.mktemp("home")
    kept = {name: os.environ[name] for name in ("LANG", "OMP_NUM_THREADS", "TMPDIR") if name in os.environ}
    return {**kept, "HOME": str(home), "PATH": f"{programs}:{os.environ['PATH']}", "NO_COLOR": "1", "COLUMNS": "80"}


def unpack(wheel: Path, site: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)


def copied(root: Path, to: Path) -> Path:
    """Copy the sources of a wheel, links as they are: a build leaves its own files beside it."""
    for name in PARTS:
        if (root / name).is_dir():
            shutil.copytree(root / name, to / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(root / name, to / name)
    return to


def build_wheel(source: Path, to: Path) -> Path:
    """As a front end such as pip has it made, by the setuptools that is here."""
    program = f"from setuptools import build_meta; build_meta.build_wheel({str(to)!r})"
    done = subprocess.run([sys.executable, "-c", program], cwd=source, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (made,) = to.glob("*.whl")
    return made
