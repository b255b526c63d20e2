"""Recipe B exists to make these faults visible; recipe A does not see them, and its speed runs need not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from specgate.backends.eagle3.pair_tools.plant.check import Load
from specgate.backends.eagle3.reference import draft, target
from specgate.backends.eagle3.reference.draft import EagleDrafter, project_features
from specgate.backends.eagle3.reference.engine import ReferenceEngine
from specgate.backends.eagle3.reference.kv_planes import plain
from specgate.backends.eagle3.reference.open import open_engine
from specgate.backends.eagle3.reference.target import target_forward
from specgate.contract import Budget, PairRef, Role
from specgate.contract.acceptance import AcceptanceRecord
from specgate.contract.protocols import OpenRequest
from tests.eagle3.pair_tools.plant.conftest import CONTEXT

K = 3
LOAD = Load(CONTEXT, prompts=4, steps=20)
Change = Callable[[Tensor], Tensor]


def length(
    pair: PairRef, options: dict[str, str] | None = None, prepare: Callable[[ReferenceEngine], None] | None = None
) -> float:
    """The acceptance length of spec-3."""
    opened = open_engine(OpenRequest(pair, "float32", 4, CONTEXT + 200, K, False, {"device": "cpu", **(options or {})}))
    if prepare:
        prepare(opened)
    opened.prefill(LOAD.token_ids(2048), draft=True)
    decoded = opened.decode(Role(K), Budget(steps=LOAD.steps), ())
    acceptance_length = AcceptanceRecord.from_steps(K, decoded.accepted, decoded.drafted, 0, 0).acceptance_length
    assert acceptance_length is not None
    return acceptance_length


def with_features(monkeypatch: pytest.MonkeyPatch, change: Change) -> None:
    """Change every feature row between the target and the draft."""

    def changed(weights: Any, geometry: Any, features: Tensor) -> Tensor:
        return project_features(weights, geometry, change(features))

    monkeypatch.setattr(draft, "project_features", changed)


def chunks(order: Sequence[int]) -> Change:
    return lambda features: torch.cat([features.chunk(3, dim=-1)[i] for i in order], dim=-1)


@pytest.fixture(scope="module")
def healthy(pair_b: PairRef) -> float:
    return length(pair_b)


def test_a_healthy_engine_accepts_what_was_planted(healthy: float) -> None:
    assert healthy > 3.2


@pytest.mark.parametrize(
    "change",
    [torch.zeros_like, lambda f: 16 * f, chunks((1, 0, 2)), chunks((0, 2, 1))],
    ids=["zero", "16 times too large", "low and middle swapped", "middle and high swapped"],
)
def test_wrong_features_halve_what_is_accepted(
    pair_b: PairRef, change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_features(monkeypatch, change)
    assert length(pair_b) < 2


def test_the_recipe_for_speed_does_not_see_missing_features(pair_a: PairRef, monkeypatch: pytest.MonkeyPatch) -> None:
    healthy = length(pair_a)
    with_features(monkeypatch, torch.zeros_like)
    assert length(pair_a) == pytest.approx(healthy, rel=0.05)


@pytest.mark.parametrize("boundaries", ["0,3,5", "1,4,5", "1,3,4", "2,4,6"])
def test_a_capture_one_layer_off_halves_what_is_accepted(pair_b: PairRef, boundaries: str) -> None:
    assert length(pair_b, {"capture": boundaries}) < 2


@pytest.mark.parametrize("late", [1, 2])
def test_features_of_another_slot_halve_what_is_accepted(
    pair_b: PairRef, late: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every slot is given the feature of the slot `late` before it, across chunks and cycles."""
    forward = target_forward
    seen = torch.zeros(4, CONTEXT + 200, 3 * 512)
    planes: list[Tensor] = []

    def shifted(w: Any, g: Any, table: Any, cache: Any, tokens: Tensor, positions: Tensor, *others: Any) -> Any:
        stream, features = forward(w, g, table, cache, tokens, positions, *others)
        if features is None:
            return stream, features
        first = (cache.k[0].data_ptr() - planes[0].data_ptr()) // planes[0][0].nbytes
        slots = torch.arange(first, first + len(tokens))[:, None]
        seen[slots, positions] = features
        return stream, seen[slots, (positions - late).clamp(min=0)]

    monkeypatch.setattr(target, "target_forward", shifted)
    assert length(pair_b, prepare=lambda opened: planes.append(plain(opened.cache.k[0]))) < 2


@pytest.mark.parametrize("damage", ["zero", "another request's"])
def test_old_slots_of_the_drafts_own_cache_matter(
    pair_b: PairRef, healthy: float, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepare(opened: ReferenceEngine) -> None:
        prefill = opened.prefill

        def damaged(prompts: Sequence[Sequence[int]], *, draft: bool) -> int:
            elapsed = prefill(prompts, draft=draft)
            assert isinstance(opened.drafter, EagleDrafter)
            for plane in map(plain, (*opened.drafter.cache.k, *opened.drafter.cache.v)):
                plane.copy_(plane.roll(1, dims=0) if damage != "zero" else torch.zeros_like(plane))
            return elapsed

        monkeypatch.setattr(opened, "prefill", damaged)

    # 67 tokens on, the head that looks back has left the damaged prompt behind.
    assert length(pair_b, prepare=prepare) < healthy - 0.3
