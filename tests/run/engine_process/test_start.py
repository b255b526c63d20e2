"""The programs that start before any import path is set."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import specgate

ROOT = Path(specgate.__file__).parent.parent
ALONE = ("specgate/run/engine_process/start.py", "backends/offline/driver/main.py")


@pytest.mark.parametrize("name", ALONE)
def test_it_imports_the_standard_library_alone_before_it_knows_its_import_path(name: str) -> None:
    """Else `import specgate` fails where it is not installed, and takes the wrong build where two are compared."""
    imported = set[str]()
    for node in ast.parse((ROOT / name).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").partition(".")[0])
    assert "sys" in imported and imported <= sys.stdlib_module_names
