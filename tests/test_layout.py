"""The arrangement of the repository: links, import directions, and what a light import may load."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SHELVES = ("backends", "gates", "reports", "scenarios")
ROOMS = ("archive", "budget", "commands", "tuning")
NOUNS = (
    *(
        "core",
        "api",
        "errors",
        "acceptance",
        "metrics",
        "stats",
        "conditions",
        "degeneracy",
        "verdict",
        "tape",
        "machine",
    ),
    *(
        "environment",
        "budget.traffic",
        "budget.cycle_budget",
        "tuning.gemms",
        "tuning.gemm_files",
        "tuning.kernel_bench",
    ),
    *("tuning.fmha", "archive.agreement", "archive.contrast", "archive.matrix", "archive.trends"),
)
HEAVY = ("torch", "cupy", "pandas", "matplotlib", "scipy", "pydantic", "tokenizers", "gguf", "transformers", "aiohttp")


@pytest.mark.parametrize("name", SHELVES)
def test_each_shelf_is_a_relative_link_to_the_top_level(name: str) -> None:
    link = ROOT / "specgate" / name
    assert os.readlink(link) == f"../{name}"
    assert (ROOT / name / "__init__.py").is_file()


def imports_of(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def python_files(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("shelf", ["backends", "gates", "reports"])
def test_a_shelf_imports_only_the_nouns_and_protocols_of_the_harness(shelf: str) -> None:
    allowed = (*NOUNS, shelf)
    for file in python_files(shelf):
        for name in imports_of(file):
            inner = name.removeprefix("specgate.")
            known = any(inner == noun or inner.startswith(f"{noun}.") for noun in allowed)
            assert known or inner == name or inner == "__version__", f"{file.relative_to(ROOT)} imports {name}"


def test_the_harness_reaches_engines_gates_and_reports_through_plugins_only() -> None:
    own = [ROOT / "specgate", *(ROOT / "specgate" / room for room in ROOMS)]
    for file in sorted(file for folder in own for file in folder.glob("*.py")):
        for name in imports_of(file):
            assert not name.startswith(tuple(f"specgate.{s}" for s in SHELVES)), f"{file.name} imports {name}"


@pytest.mark.parametrize("arguments", [["-c", "import specgate"], ["-m", "specgate", "--help"]])
def test_a_light_start_loads_nothing_heavy(arguments: list[str]) -> None:
    probe = "import sys,atexit;atexit.register(lambda: print('LOADED', *sorted(sys.modules), file=sys.stderr));"
    if arguments[0] == "-c":
        command = [sys.executable, "-c", probe + arguments[1]]
    else:
        run = "import runpy;sys.argv=['specgate','--help'];runpy.run_module('specgate',run_name='__main__')"
        command = [sys.executable, "-c", probe + run]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = done.stderr.rpartition("LOADED")[2].split()
    assert "specgate" in loaded
    assert not [m for m in HEAVY if m in loaded]


def test_python_dash_m_runs_from_another_folder(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "specgate", "--version"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert "specgate" in done.stdout
