"""Imports of Python files, read from their syntax: at the top, inside functions and under TYPE_CHECKING alike."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]

SHELVES = ("backends", "gates", "reports", "scenarios")
"""Sub-packages of specgate that live at the top level of the repository."""


@cache
def imports_of(file: Path) -> tuple[str, ...]:
    """Dotted names, `from a import b` as `a.b`. Relative imports are refused: they hide where a name comes from."""
    return tuple(_imports(file))


def _imports(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                assert level == 0, f"{file}:{node.lineno}: relative import"
                yield from (f"{module}.{alias.name}" for alias in names)
            case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called), args=[ast.Constant(str(name)), *_]):
                if called in ("import_module", "__import__"):
                    yield name


@cache
def modules() -> dict[str, Path]:
    """Every module of specgate → its file; a package is named without `__init__`."""
    data = {}
    for folder, above in [(ROOT / "specgate", ROOT), *((ROOT / shelf, ROOT) for shelf in SHELVES)]:
        for file in sorted(folder.rglob("*.py")):
            parts = file.relative_to(above).with_suffix("").parts
            parts = parts if parts[0] == "specgate" else ("specgate", *parts)
            data[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return data


def imported_modules(module: str) -> frozenset[str]:
    """The modules of specgate that a module of it names in its imports.

    `specgate` itself counts as naming none: what it opens in `open_run` is reached by callers of that only.
    """
    if module == "specgate":
        return frozenset()
    return frozenset(module_of(name) for name in imports_of(modules()[module]) if name.split(".")[0] == "specgate")


def module_of(name: str) -> str:
    """Of `specgate.contract.State`, which is defined in a package, the package."""
    while name not in modules():
        name = name.rpartition(".")[0]
    return name


def room_of(module: str) -> str:
    """The folder below the top level, or the module beside it, that a module belongs to."""
    return module.split(".")[1] if "." in module else module


@cache
def reached_from(module: str) -> frozenset[str]:
    """All modules that are imported, directly or not, for a module; itself only where it stands in a circle."""
    results = set[str]()
    waiting = [*imported_modules(module)]
    while waiting:
        if (one := waiting.pop()) not in results:
            results.add(one)
            waiting += imported_modules(one)
    return frozenset(results)
