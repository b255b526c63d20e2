"""The parts of the engine's package import in one direction. `tests/test_layout.py` holds circles, heaps and maps."""

from __future__ import annotations

import tomllib

import pytest

from tests.support.imports import ROOT, imported_modules, imports_of, modules

PACKAGE = "specgate.backends.eagle3.cupy."
ORDER = (*("backend", "tuning", "bench", "engine", "step", "memory", "tuned", "kernels"), *("stream", "device"))
"""Folders and single files from the top to the bottom: each imports only from parts that come after it."""


def part_of(module: str) -> str:
    return module.removeprefix(PACKAGE).partition(".")[0]


def test_every_part_of_the_package_has_a_place_in_the_order() -> None:
    assert {part_of(module) for module in modules() if module.startswith(PACKAGE)} == set(ORDER)


def test_every_part_imports_only_from_those_below_it() -> None:
    mine = [module for module in modules() if module.startswith(PACKAGE)]
    rank = {part: index for index, part in enumerate(ORDER)}
    result = [
        f"{module} imports {other}"
        for module in mine
        for other in imported_modules(module)
        if other.startswith(PACKAGE) and rank[part_of(other)] < rank[part_of(module)]
    ]
    assert mine and not result


@pytest.mark.parametrize("extra", ["cuda12", "cuda13"])
def test_what_reaches_a_gpu_is_named_by_the_extra_that_brings_the_engine(extra: str) -> None:
    """torch for a GPU brings one of them along; another build of it need not."""
    imported = {
        name.split(".")[0] for module, file in modules().items() if PACKAGE in module for name in imports_of(file)
    }
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for module, package in (("cupy", "cupy-cuda"), ("cuda", "cuda-bindings")):
        assert module in imported and any(requirement.startswith(package) for requirement in extras[extra])
