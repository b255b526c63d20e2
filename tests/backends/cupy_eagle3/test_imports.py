"""Which file of the engine imports which: never in a circle, and from folder to folder in one direction only.

Imports inside functions count like all others.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from specgate.backends import cupy_eagle3

PACKAGE = "specgate.backends.cupy_eagle3"
ROOT = Path(cupy_eagle3.__file__).parent
ORDER = (
    *("backend", "tuning", "bench", "engine", "step", "memory", "tuned", "kernels"),
    *("stream", "nvtx", "device"),
)
"""The parts of the package, folders and single files: each imports from parts further to the right only."""
MOST = 20
"""Files that may lie side by side in a folder."""


def imported(text: str) -> Iterator[str]:
    """Every name that is imported: a module, or a module and something inside it."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports are not followed here"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def graph(root: Path, package: str) -> Mapping[str, set[str]]:
    """Module → modules of `package` that it imports, by their names inside the package."""
    files = {".".join(file.relative_to(root).with_suffix("").parts): file for file in root.rglob("*.py")}
    found = dict[str, set[str]]()
    for module, file in files.items():
        inner = (name.removeprefix(f"{package}.") for name in imported(file.read_text(encoding="utf-8")))
        found[module] = {known for name in inner for known in (name, name.rpartition(".")[0]) if known in files}
    return found


def upward(imports: Mapping[str, set[str]]) -> list[str]:
    """Imports against `ORDER`."""
    rank = {part: index for index, part in enumerate(ORDER)}
    parts = (
        (module, other, rank[module.partition(".")[0]], rank[other.partition(".")[0]])
        for module, others in imports.items()
        for other in others
    )
    return [f"{module} imports {other}" for module, other, own, its in parts if its < own]


def between(imports: Mapping[str, set[str]], folder: str) -> Mapping[str, set[str]]:
    """Entry of `folder` → other entries of it that it imports: files, and sub-folders with all that is in them."""
    start = f"{folder}." if folder else ""
    found = dict[str, set[str]]()
    for module, others in imports.items():
        if module.startswith(start):
            entry = module.removeprefix(start).partition(".")[0]
            inside = {other.removeprefix(start).partition(".")[0] for other in others if other.startswith(start)}
            found.setdefault(entry, set()).update(inside - {entry})
    return found


@pytest.fixture(scope="module")
def imports() -> Mapping[str, set[str]]:
    return graph(ROOT, PACKAGE)


def test_every_part_of_the_package_has_a_place_in_the_order(imports: Mapping[str, set[str]]) -> None:
    assert {module.partition(".")[0] for module in imports} - {"__init__"} == set(ORDER)


def test_no_file_imports_itself_by_way_of_others(imports: Mapping[str, set[str]]) -> None:
    assert len(list(TopologicalSorter(imports).static_order())) == len(imports)


def test_what_lies_in_a_folder_imports_in_one_direction(imports: Mapping[str, set[str]]) -> None:
    """Sub-folders count as one, so that they do not import each other in a circle either."""
    folders = {module.rpartition(".")[0] for module in imports}
    assert {"", "kernels", "kernels.state"} <= folders
    for folder in folders:
        list(TopologicalSorter(between(imports, folder)).static_order())


def test_the_parts_import_in_the_order_that_they_are_said_to_have(imports: Mapping[str, set[str]]) -> None:
    assert imports["engine.open"] and not upward(imports)


def test_a_circle_and_an_upward_import_are_seen_even_inside_functions(tmp_path: Path) -> None:
    (tmp_path / "bench").mkdir()
    (tmp_path / "engine").mkdir()
    (tmp_path / "bench" / "run.py").write_text("from own.engine.open import first\n")
    (tmp_path / "engine" / "open.py").write_text("def first():\n    from own.bench import run\n")
    found = graph(tmp_path, "own")
    assert upward(found) == ["engine.open imports bench.run"]
    for circle in (found, between(found, "")):
        with pytest.raises(CycleError):
            list(TopologicalSorter(circle).static_order())


def test_no_folder_holds_more_files_than_can_be_taken_in() -> None:
    folders = [ROOT, *(folder for folder in ROOT.rglob("*") if folder.is_dir() and folder.name != "__pycache__")]
    counts = {folder.name: sum(file.is_file() for file in folder.iterdir()) for folder in folders}
    assert {name: count for name, count in counts.items() if count > MOST} == {}


@pytest.mark.parametrize("file", sorted(ROOT.rglob("__init__.py")), ids=lambda file: file.parent.name)
def test_every_package_opens_with_a_map_of_its_files_and_folders(file: Path) -> None:
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    entries = [entry for entry in file.parent.iterdir() if entry.name not in ("__init__.py", "__pycache__")]
    names = {f"{entry.name}/" if entry.is_dir() else entry.name for entry in entries}
    named = set(re.findall(r"^ *([\w-]+(?:\.\w+|/)) {2,}", text, re.MULTILINE))
    # A kernel's file goes without saying beside the launcher of the same name.
    assert named == {name for name in names if not name.endswith(".cu") or f"{name[:-3]}.py" not in names}
