"""A tiny pair of either recipe, planted once per test run with a smaller calibration than the command's."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from filelock import FileLock

from specgate.backends.eagle3.pair_tools.plant import calibrate, command
from specgate.backends.eagle3.pair_tools.plant.command import Wish, plant
from specgate.backends.eagle3.pair_tools.plant.decoder import Decoder
from specgate.contract import PairRef
from specgate.contract.protocols import Backend

CPU = Decoder("float32", "cpu")
CONTEXT = 96
"""More than planted tokens look back (67), and more rows than the reference engine takes for a decode step (64)."""


def planted_pair(folder: Path, wish: Wish, texts: int = 4, backend: Backend = CPU.backend) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibrate, "TEXTS", texts)
        patch.setattr(calibrate, "WALK", 256)
        patch.setattr(calibrate, "REFINEMENTS", 1)
        patch.setattr(command, "CHECK_PROMPTS", 2)
        patch.setattr(command, "CHECK_STEPS", 32)
        plant(wish, folder, replace(CPU, backend=backend), lambda line: None)


def shared(base: Path, name: str, wish: Wish, texts: int = 4) -> PairRef:
    """Planted by the worker that comes first; the others wait for it."""
    folder = base / "planted" / name
    folder.parent.mkdir(exist_ok=True)
    with FileLock(folder.with_suffix(".lock")):
        if not folder.with_suffix(".done").exists():
            planted_pair(folder, wish, texts)
            folder.with_suffix(".done").touch()
    return PairRef(name, folder / "target", folder / "draft", "planted")


@pytest.fixture(scope="session")
def shared_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this test run, the same for every worker of pytest-xdist."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def pair_a(shared_base: Path) -> PairRef:
    return shared(shared_base, "a", Wish("tiny", 3.0, 3, "A", context=CONTEXT))


@pytest.fixture(scope="session")
def pair_experts(shared_base: Path) -> PairRef:
    """With half of the overlap that neighbours can have."""
    return shared(shared_base, "experts", Wish("gpt-oss-tiny", 3.0, 3, context=CONTEXT, expert_overlap=0.5), texts=2)


@pytest.fixture(scope="session")
def pair_b(shared_base: Path) -> PairRef:
    return shared(shared_base, "b", Wish("tiny", 3.4, 3, "B", context=CONTEXT, written=False))
