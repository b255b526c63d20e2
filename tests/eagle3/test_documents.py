"""The documents of the engine's house have what its code has."""

from __future__ import annotations

import re

import pytest

from specgate.backends.eagle3.cupy.engine.open import OPTIONS as CUPY
from specgate.backends.eagle3.reference.open import OPTIONS as REFERENCE
from tests.support.command import ROOT

DOCS = ROOT / "backends" / "eagle3" / "docs"


@pytest.mark.parametrize(("page", "options"), [("built-in-engine.md", CUPY), ("reference-engine.md", REFERENCE)])
def test_the_table_of_options_has_each_option_of_the_engine_and_no_other(page: str, options: tuple[str, ...]) -> None:
    rows = re.findall(r"^\| (`.*?) \|", (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([a-z_]+)`", row)}
    assert named == set(options)


def test_the_page_of_structure_names_files_that_exist() -> None:
    named = re.findall(r"`(\w[\w.]*/[\w./]*)`", (DOCS / "structure.md").read_text(encoding="utf-8"))
    assert len(named) > 30
    assert [path for path in named if not ((DOCS.parent / path).exists() or (ROOT / path).exists())] == []
