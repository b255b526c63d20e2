"""What was compiled once is kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from specgate.backends.eagle3.cupy.kernels.read_memory import ReadMemory
from tests.eagle3.cupy.kernels.compiled.compiler import Compiler, with_constant


def test_what_was_compiled_once_is_not_compiled_again_and_an_edit_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler, spec = Compiler(tmp_path), ReadMemory().spec
    (first,) = compiler.compile_all("sm_90", [spec])
    assert first.compiled and first.registers > 0
    here = "tests.eagle3.cupy.kernels.compiled.compiler.compiled"
    asked: list[str] = []

    def nothing(architecture: str, sources: Sequence[object]) -> list[dict[str, Any]]:
        asked.extend([architecture] * len(sources))
        return []

    monkeypatch.setattr(here, nothing)
    assert compiler.compile_all("sm_90", [spec]) == [first] and not asked
    for architecture, other in (("sm_80", spec), ("sm_90", with_constant(spec, "LOADS", 4))):
        with pytest.raises(ValueError, match="shorter"):
            compiler.compile_all(architecture, [other])
    assert asked == ["sm_80", "sm_90"]
