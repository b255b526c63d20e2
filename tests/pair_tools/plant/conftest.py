"""A tiny pair of either recipe, planted once per test run with a smaller calibration than the command's."""

from __future__ import annotations

from pathlib import Path

import pytest

from specgate.core import PairRef
from specgate.pair_tools.plant import calibrate, command
from specgate.pair_tools.plant.command import Wish, plant

CONTEXT = 96
"""More than planted tokens look back (67), and more rows than the reference engine takes for a decode step (64)."""


def planted_pair(folder: Path, wish: Wish) -> PairRef:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibrate, "TEXTS", 4)
        patch.setattr(calibrate, "WALK", 256)
        patch.setattr(calibrate, "REFINEMENTS", 1)
        patch.setattr(command, "CHECK_PROMPTS", 2)
        patch.setattr(command, "CHECK_STEPS", 32)
        plant(wish, folder, "cpu", lambda line: None)
    return PairRef(folder.name, folder / "target", folder / "draft", "planted")


@pytest.fixture(scope="session")
def pair_a(tmp_path_factory: pytest.TempPathFactory) -> PairRef:
    folder = tmp_path_factory.mktemp("planted") / "a"
    return planted_pair(folder, Wish("tiny", 3.0, 3, "A", context=CONTEXT))


@pytest.fixture(scope="session")
def pair_b(tmp_path_factory: pytest.TempPathFactory) -> PairRef:
    folder = tmp_path_factory.mktemp("planted") / "b"
    return planted_pair(folder, Wish("tiny", 3.4, 3, "B", context=CONTEXT, written=False))
