"""A tiny pair of either recipe, planted once per test run with a smaller calibration than the command's."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from specgate.backends.eagle3.pair_tools.plant import calibrate, command
from specgate.backends.eagle3.pair_tools.plant.command import Wish, plant
from specgate.backends.eagle3.pair_tools.plant.decoder import Decoder
from specgate.backends.eagle3.reference.backend import ReferenceBackend
from specgate.contract import PairRef
from specgate.contract.protocols import Engine, OpenRequest

MadeOnce = Callable[[str, Callable[[Path], object]], Path]
CPU = Decoder("float32", "cpu")
CONTEXT = 96
"""More than planted tokens look back (67), and more rows than the reference engine takes for a decode step (64)."""


class Watched(ReferenceBackend):
    """The reference engine, and what it was asked to open."""

    name = "watched"

    def __init__(self) -> None:
        self.asked: list[OpenRequest] = []

    def open(self, request: OpenRequest) -> Engine:
        self.asked.append(request)
        return super().open(request)


def planted_pair(folder: Path, wish: Wish, texts: int, walk: int) -> None:
    """Plant a pair, and write beside its folder which engines were opened for that."""
    backend = Watched()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibrate, "TEXTS", texts)
        patch.setattr(calibrate, "WALK", walk)
        patch.setattr(calibrate, "REFINEMENTS", 1)
        patch.setattr(command, "CHECK_PROMPTS", 2)
        patch.setattr(command, "CHECK_STEPS", 32)
        plant(wish, folder, replace(CPU, backend=backend), lambda line: None)
    opened = [(str(r.pair.target), r.dtype, r.max_batch, r.max_k, dict(r.options)) for r in backend.asked]
    folder.with_suffix(".json").write_text(json.dumps(opened))


@pytest.fixture(scope="session")
def shared(made_once: MadeOnce) -> Callable[..., PairRef]:
    def pair(name: str, wish: Wish, texts: int = 4, walk: int = 128) -> PairRef:
        folder = made_once(f"planted-{name}", lambda folder: planted_pair(folder, wish, texts, walk))
        return PairRef(name, folder / "target", folder / "draft", "planted")

    return pair


@pytest.fixture(scope="session")
def pair_a(shared: Callable[..., PairRef]) -> PairRef:
    return shared("a", Wish("tiny", 3.0, 3, "A", context=CONTEXT))


@pytest.fixture(scope="session")
def pair_experts(shared: Callable[..., PairRef]) -> PairRef:
    """With half of the overlap that neighbours can have. It is calibrated with twice the texts, each half as long."""
    return shared("experts", Wish("gpt-oss-tiny", 3.0, 3, context=CONTEXT, expert_overlap=0.5), texts=2, walk=256)


@pytest.fixture(scope="session")
def pair_b(shared: Callable[..., PairRef]) -> PairRef:
    return shared("b", Wish("tiny", 3.4, 3, "B", context=CONTEXT, written=False))
