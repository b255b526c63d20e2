"""The arrangement of the repository: rooms and their order, public rooms, maps, links, and what a light start loads."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.support.command import ROOT, Cli
from tests.support.imports import SHELVES, imported_modules, imports_of, modules, reached_from, room_of

FLOORS = (
    ("errors",),
    ("redaction",),
    ("contract",),
    ("files",),
    ("terminal",),
    ("sampling",),
    ("checkpoints",),
    ("analysis",),
    ("sandbox",),
    ("plugin_process",),
    ("plugins",),
    ("pairs",),
    ("machine",),
    ("planning", "backends", "gates", "reports", "scenarios"),
    ("promotion",),
    ("run",),
    ("fleet",),
    ("ab",),
    ("sweep",),
    ("archive",),
    ("selftest",),
    ("commands",),
    ("cli",),
    ("__main__",),
)
"""The rooms of the harness from the bottom to the top. A room imports only rooms of lower floors; there are no
exceptions. `specgate` itself lies below all of them: its `__version__` may be imported anywhere.
"""

ENGINE = "specgate.backends.eagle3"
ENGINE_FLOORS = (
    ("nouns",),
    ("lib",),
    ("reference",),
    ("transformers",),
    ("cupy",),
    ("pairs",),
    ("tuning",),
    ("pair_tools",),
    ("commands",),
)
"""The rooms of the engine's house, likewise."""
ENGINE_TOOLS = ("pairs", "tuning", "pair_tools", "commands")
"""Its rooms that serve commands. They import what commands need besides the public rooms."""
FOR_COMMANDS = ("terminal", "plugins", "pairs", "planning", "archive", "commands")

PUBLIC = {
    "backends": ("errors", "redaction", "contract", "files", "analysis", "sampling", "checkpoints", "machine"),
    "gates": ("errors", "redaction", "contract", "files", "analysis", "sampling"),
    "reports": ("errors", "redaction", "contract", "files", "analysis"),
}
"""What a shelf may import besides itself: what an author from outside may import."""

MOST = 20
"""Files beside each other in a folder."""

HEAVY = ("torch", "cupy", "pandas", "matplotlib", "scipy", "pydantic", "tokenizers", "gguf", "transformers", "aiohttp")


def is_in(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


# Rooms and their order


def test_every_room_has_its_floor() -> None:
    rooms = {room_of(module) for module in modules()} - {"specgate"}
    assert sorted(rooms) == sorted(room for floor in FLOORS for room in floor)


def test_a_room_imports_only_rooms_below_it() -> None:
    floor_of = {room: number for number, floor in enumerate(FLOORS) for room in floor}
    wrong = [
        f"{module} imports {imported}"
        for module in modules()
        for imported in sorted(imported_modules(module) - {"specgate"})
        if not is_in(module, (ENGINE,))
        and room_of(imported) != room_of(module)
        and floor_of[room_of(imported)] >= floor_of[room_of(module)]
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.skipif(not (ROOT / "backends" / "eagle3").is_dir(), reason="the engine's house is not in this tree")
def test_a_room_of_the_engine_imports_only_rooms_below_it() -> None:
    floor_of = {room: number for number, floor in enumerate(ENGINE_FLOORS) for room in floor}
    house = [module for module in modules() if module.startswith(f"{ENGINE}.")]
    assert {part_of(module, ENGINE) for module in house} == set(floor_of)
    wrong = [
        f"{module} imports {imported}"
        for module in house
        for imported in sorted(imported_modules(module))
        if imported.startswith(f"{ENGINE}.")
        and (part_of(imported, ENGINE) != (room := part_of(module, ENGINE)))
        and floor_of[part_of(imported, ENGINE)] >= floor_of[room]
    ]
    assert not wrong, "\n".join(wrong)


def test_the_engine_imports_public_rooms_and_its_tools_what_commands_need() -> None:
    wrong = []
    for module in modules():
        if module.startswith(f"{ENGINE}."):
            tools = part_of(module, ENGINE) in ENGINE_TOOLS
            allowed = (*PUBLIC["backends"], *(FOR_COMMANDS if tools else ()))
            for imported in sorted(imported_modules(module) - {"specgate"}):
                if not is_in(imported, (ENGINE,)) and room_of(imported) not in allowed:
                    wrong.append(f"{module} imports {imported}")
    assert not wrong, "\n".join(wrong)


def test_nothing_but_its_entry_points_leads_to_the_engine() -> None:
    wrong = [
        f"{module} imports {imported}"
        for module in modules()
        if not is_in(module, (ENGINE,))
        for imported in sorted(imported_modules(module))
        if is_in(imported, (ENGINE,))
    ]
    assert not wrong, "\n".join(wrong)


def test_the_harness_imports_no_library_of_an_engine() -> None:
    wrong = [
        f"{module} imports {name}"
        for module, file in modules().items()
        if not is_in(module, (ENGINE, "specgate.backends.offline.driver"))
        for name in imports_of(file)
        if name.split(".")[0] in ("torch", "cupy", "transformers", "gguf")
    ]
    assert not wrong, "\n".join(wrong)


def test_of_specgate_itself_only_version_and_place_are_imported() -> None:
    rooms = {room_of(module) for module in modules()}
    for module, file in modules().items():
        for name in imports_of(file):
            top, _, rest = name.partition(".")
            assert top != "specgate" or rest in ("", "__version__") or rest.split(".")[0] in rooms, f"{module}: {name}"


def test_no_files_import_each_other_in_a_circle() -> None:
    circles = {frozenset(b for b in reached_from(a) if a in reached_from(b)) for a in modules()} - {frozenset()}
    assert not circles, "\n".join(f"a circle of {len(circle)}: {', '.join(sorted(circle))}" for circle in circles)


def test_the_parts_of_a_folder_import_in_one_direction() -> None:
    """A folder inside it counts as one part, so that folders do not import each other in a circle either."""
    for folder in sorted({module.rpartition(".")[0] for module in modules()} - {"", "specgate"}):
        inside = [module for module in modules() if module.startswith(f"{folder}.")]
        parts = dict[str, set[str]]()
        for module in inside:
            part = part_of(module, folder)
            imported = {part_of(other, folder) for other in imported_modules(module) if other.startswith(f"{folder}.")}
            parts.setdefault(part, set()).update(imported - {part})
        try:
            TopologicalSorter(parts).prepare()
        except CycleError as circle:
            pytest.fail(f"{folder}: {' ← '.join(circle.args[1])}")


def part_of(module: str, folder: str) -> str:
    return module.removeprefix(f"{folder}.").split(".")[0]


def test_imports_are_seen_wherever_they_stand(tmp_path: Path) -> None:
    (file := tmp_path / "module.py").write_text(
        "import a.b\nif TYPE_CHECKING:\n    from c import d as e\n"
        "def later():\n    from f.g import h, i\n    importlib.import_module('j.k')\n"
    )
    assert sorted(imports_of(file)) == ["a.b", "c.d", "f.g.h", "f.g.i", "j.k"]
    (relative := tmp_path / "relative.py").write_text("def later():\n    from .other import name\n")
    with pytest.raises(AssertionError, match=r"relative\.py:2: relative import"):
        imports_of(relative)


# The plug-in door


@pytest.mark.parametrize("shelf", PUBLIC)
def test_a_shelf_imports_public_rooms_and_itself(shelf: str) -> None:
    wrong = [
        f"{module} imports {imported}"
        for module in modules()
        if room_of(module) == shelf and not is_in(module, (ENGINE,))
        for imported in sorted(imported_modules(module) - {"specgate"})
        if room_of(imported) not in (*PUBLIC[shelf], shelf)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_harness_reaches_engines_gates_and_reports_by_entry_point_only() -> None:
    """By no way of imports, however long; `specgate.plugins` has the entry points."""
    harness = [module for module in modules() if room_of(module) not in (*SHELVES, "specgate")]
    wrong = [
        f"{module} imports {reached}"
        for module in harness
        for reached in sorted(reached_from(module))
        if room_of(reached) in SHELVES
    ]
    assert not wrong, "\n".join(wrong)


# Folders and maps


def folders(*tops: str) -> Iterator[Path]:
    """Every folder below them, as git has it: what Python and its tools leave behind does not count."""
    for top in tops:
        for folder in (ROOT / top, *(ROOT / top).rglob("*")):
            if folder.is_dir() and not folder.is_symlink() and not re.search(r"__pycache__|/\.", str(folder)):
                yield folder


def test_no_folder_is_a_heap() -> None:
    counts = {
        folder: sum(file.is_file() for file in folder.iterdir())
        for folder in folders("specgate", "backends", "gates", "reports", "tests")
    }
    heaps = [f"{folder.relative_to(ROOT)}: {count} files" for folder, count in counts.items() if count > MOST]
    assert not heaps, "\n".join(heaps)


def test_every_package_opens_with_a_map_of_itself() -> None:
    """Its docstring names every Python file as `name.py` and every folder as `name/`, and none that is not there."""
    wrong = []
    for package in folders("specgate", "backends", "gates", "reports"):
        if (init := package / "__init__.py").is_file():
            says = ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))) or ""
            inside = {f"{child.name}/" for child in package.iterdir() if child.is_dir() and child.name != "__pycache__"}
            inside |= {child.name for child in package.glob("*.py") if child != init}
            named = set(re.findall(r"(?<![\w/.-])(\w+(?:\.py|/))(?!\w)", says))
            lines = set(re.findall(r"^ *(\w+(?:\.py|/)) {2,}", says, re.MULTILINE))
            wrong += [f"{init.relative_to(ROOT)} does not name {name}" for name in sorted(inside - named)]
            wrong += [f"{init.relative_to(ROOT)} names {name}, which is gone" for name in sorted(lines - inside)]
    assert not wrong, "\n".join(wrong)


# Links, and the light start


@pytest.mark.parametrize("name", SHELVES)
def test_each_shelf_is_a_relative_link_to_the_top_level(name: str) -> None:
    link = ROOT / "specgate" / name
    assert os.readlink(link) == f"../{name}"
    assert (ROOT / name / "__init__.py").is_file()


def loaded_by(statements: str, folder: Path) -> set[str]:
    """The modules that a process has loaded when it ends after `statements`."""
    probe = "import sys, atexit; atexit.register(lambda: print('LOADED', *sys.modules, file=sys.stderr))\n"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", probe + statements]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return {*done.stderr.rpartition("LOADED")[2].split()}


def command_line(*arguments: str | Path) -> str:
    argv = ["specgate", *map(str, arguments)]
    return f"import runpy; sys.argv = {argv}; runpy.run_module('specgate', run_name='__main__')"


@pytest.mark.parametrize("statements", ["import specgate", command_line("--help")])
def test_a_light_start_loads_nothing_heavy(statements: str) -> None:
    loaded = loaded_by(statements, ROOT)
    assert "specgate" in loaded
    assert not [m for m in HEAVY if m in loaded]


def test_a_run_imports_what_an_engine_needs_in_the_engines_process_only(cli: Cli) -> None:
    pair = ("--target", cli.target, "--draft", cli.draft)
    request = ("micro", "--scenario", "tiny.yaml", "--policy", "policy.yaml", "--backend", "fake", *pair)
    loaded = loaded_by(command_line(*request), cli.folder)
    assert "specgate.run.runner" in loaded and cli.newest()
    assert not loaded & {"torch", "cupy", "transformers"}


def test_python_dash_m_runs_from_another_folder(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "specgate", "--version"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert "specgate" in done.stdout
