"""The two houses as two distributions, made from copies: the harness works without the engine's house, and the engine
joins it by the entry points of a wheel of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from configparser import ConfigParser
from pathlib import Path

import pytest

from tests.guide.conftest import build_wheel, copied, unpack
from tests.support.command import ROOT, Cli

pytestmark = pytest.mark.slow("makes two wheels")

ENGINE = Path("backends", "eagle3")
ENGINE_LIBRARIES = ("torch", "cupy", "transformers", "gguf")
ALONE = """\
import sys
# An editable install finds what is not on the path in the checkout.
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder).lower()]
sys.modules.update(dict.fromkeys({missing}))  # importing one fails
"""
"""The `sitecustomize.py` of every process: what lies in the checkout, and `missing` libraries, are not to be had."""
EVERY_MODULE = """\
import importlib, pkgutil, sys, specgate
def names(package):
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        if module.name not in ("specgate.__main__", "specgate.backends.offline.driver"):
            yield module.name
            if module.ispkg:
                yield from names(importlib.import_module(module.name))
for name in names(specgate):
    importlib.import_module(name)
    print(name, sys.modules[name].__file__)
"""
PYPROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"
[project]
name = "specgate-eagle3"
version = "0.1.0"
dependencies = ["specgate-bench", "torch"]
{entry_points}
[tool.setuptools.packages.find]
where = ["src"]
include = ["specgate.backends.eagle3*"]
[tool.setuptools.package-data]
"*" = ["*.cu", "*.cuh", "*.json", "*.safetensors", "*.md"]
"specgate.backends.eagle3.pairs" = ["planted/*/*/config.json"]
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout without the engine's house and its tests."""
    folder = copied(ROOT, tmp_path_factory.mktemp("harness"))
    shutil.rmtree(folder / ENGINE)
    shelf = folder / "backends" / "__init__.py"  # its map has a line for the house
    shelf.write_text("".join(line for line in shelf.read_text().splitlines(True) if "eagle3/" not in line))
    without = shutil.ignore_patterns("__pycache__", "eagle3")
    for beside in ("tests", "bench"):
        shutil.copytree(ROOT / beside, folder / beside, ignore=without)
    for read in (".ci", ".gitignore", "docs", "CHANGELOG.md", "CONTRIBUTING.md", "run_suite.sh"):
        (folder / read).symlink_to(ROOT / read)
    return folder


@pytest.fixture(scope="module")
def harness(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The harness's wheel, unpacked as an installer leaves it, and a Python that has no library of an engine."""
    site = tmp_path_factory.mktemp("site")
    unpack(build_wheel(source, tmp_path_factory.mktemp("dist")), site)
    (site / "sitecustomize.py").write_text(ALONE.format(missing=ENGINE_LIBRARIES))
    return site


@pytest.fixture(scope="module")
def both(harness: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with the engine's wheel beside it."""
    site = tmp_path_factory.mktemp("both") / "site"
    shutil.copytree(harness, site)  # with what was compiled of it, which is of use as it stands
    unpack(engines_wheel(tmp_path_factory.mktemp("engine"), tmp_path_factory.mktemp("dist")), site)
    (site / "sitecustomize.py").write_text(ALONE.format(missing=()))
    return site


def engines_wheel(folder: Path, to: Path) -> Path:
    """Build the engine's house as a distribution of its own: the folder and its entry points."""
    house = folder / "src" / "specgate" / ENGINE
    shutil.copytree(ROOT / ENGINE, house, ignore=shutil.ignore_patterns("__pycache__"))
    declared = ConfigParser(delimiters=("=",))
    declared.read(house / "entry_points.txt")
    (house / "entry_points.txt").unlink()
    lines = []
    for group in declared.sections():
        lines.append(f'[project.entry-points."{group}"]')
        lines += [f'"{name}" = "{value}"' for name, value in declared[group].items()]
    (folder / "pyproject.toml").write_text(PYPROJECT.format(entry_points="\n".join(lines)))
    return build_wheel(folder, to)


def environment(site: Path) -> Mapping[str, str]:
    return {**os.environ, "PYTHONPATH": str(site), "NO_COLOR": "1"}


def python(site: Path, folder: Path, *arguments: str | Path) -> str:
    """Return the output of a Python of this site."""
    done = subprocess.run(
        [sys.executable, "-P", *map(str, arguments)],
        cwd=folder,
        env=environment(site),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def micro(cli: Cli, site: Path, backend: str) -> None:
    """Measure the tiny pair on `backend`, with nothing that another engine would have to check."""
    pair = ("--target", cli.target, "--draft", cli.draft)
    options = ("--scenario", "tiny.yaml", "--policy", "policy.yaml", "--backend", backend, "--plain")
    printed = python(site, cli.folder, "-m", "specgate", "micro", *options, *pair)
    assert "verdict PASS (exit 0)" in printed
    assert json.loads((cli.newest() / "run.json").read_text())["status"] == "complete"


def test_every_module_of_the_harness_is_imported_without_the_engine_and_its_libraries(
    harness: Path, tmp_path: Path
) -> None:
    lines = [line.split() for line in python(harness, tmp_path, "-c", EVERY_MODULE).splitlines()]
    assert len(lines) > 300 and all(Path(file).is_relative_to(harness) for _, file in lines)
    assert not [name for name, _ in lines if "eagle3" in name]


def test_the_command_line_without_the_engine_has_its_own_commands_and_measures(
    harness: Path, cli: Cli, tmp_path: Path
) -> None:
    assert "  tune " not in python(harness, tmp_path, "-m", "specgate", "engine", "--help")
    listed = python(harness, tmp_path, "-m", "specgate", "machine", "backends")
    assert "vllm" in listed and "cupy" not in listed and "reference" not in listed
    micro(cli, harness, "fake")


def test_tests_of_the_harness_pass_without_the_engine(source: Path) -> None:
    """Of its tests, two folders; `SPECGATE_ALONE=tests` in the environment runs all of them, in minutes."""
    few = "tests/contract tests/checkpoints/heads --ignore tests/contract/test_traffic.py"
    tests = os.environ.get("SPECGATE_ALONE", few).split()
    (source / "sitecustomize.py").write_text(ALONE.format(missing=()))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, cwd=source, env=environment(source), capture_output=True, text=True, timeout=3000)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


def test_the_engines_wheel_has_every_file_of_its_house(both: Path) -> None:
    def files(house: Path) -> set[Path]:
        return {f.relative_to(house) for f in house.rglob("*") if f.is_file() and "__pycache__" not in f.parts}

    assert files(both / "specgate" / ENGINE) == files(ROOT / ENGINE) - {Path("entry_points.txt")}


def test_beside_the_harness_the_engines_wheel_brings_back_ends_commands_and_pairs(
    both: Path, cli: Cli, tmp_path: Path
) -> None:
    assert "tune" in python(both, tmp_path, "-m", "specgate", "--help")
    listed = python(both, tmp_path, "-m", "specgate", "machine", "backends")
    assert "cupy" in listed and "reference" in listed
    assert "planted-llama-3.1-8b-al3.0" in python(both, tmp_path, "-m", "specgate", "engine", "pairs", "list")
    micro(cli, both, "reference")
