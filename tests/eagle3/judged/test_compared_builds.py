"""Whether what `specgate ab` compared is the engine that runs here use."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from specgate.ab.recording import is_installed
from specgate.backends.eagle3.reference.engine import ReferenceEngine
from specgate.run.engine_process.questions import Where


@pytest.mark.parametrize(("backend", "installed"), [("reference", True), ("vllm", False)])
def test_an_engine_of_a_back_end_is_the_installed_one_wherever_below_it_its_class_lies(
    backend: str, installed: bool
) -> None:
    engine: Any = object.__new__(ReferenceEngine)
    new = SimpleNamespace(side="new", origin=Where().ask(engine))
    request: Any = SimpleNamespace(sides={"new": SimpleNamespace(python=None)})
    result: Any = SimpleNamespace(processes=[new])
    assert is_installed(backend, request, result) is installed
