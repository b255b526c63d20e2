"""Products of experts with random operands: the kernels' own sources on a CPU, and whether planted faults are seen."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.experts.expert_config import ExpertConfig
from specgate.backends.eagle3.cupy.tuned.lookup import EXPERT_DOWN, EXPERT_GATE_UP
from specgate.backends.eagle3.cupy.tuning.expert_product import ExpertProduct, launcher
from specgate.backends.eagle3.cupy.tuning.product import Results
from specgate.backends.eagle3.nouns.gemms import GemmShape
from tests.eagle3.cupy import oracles

GATE_UP, DOWN = GemmShape(EXPERT_GATE_UP, 96, 160, 8, 7, 3), GemmShape(EXPERT_DOWN, 96, 160, 8, 7, 3)
both = pytest.mark.parametrize("shape", [GATE_UP, DOWN], ids=["gate and up", "down"])


@both
def test_what_the_kernels_compute_has_no_fault(shape: GemmShape, device: str) -> None:
    product = ExpertProduct.random(shape, copies=2, device=device)
    usual = launcher(shape).config
    for config in (usual, replace(usual, tiles=1, blocks_per_sm=1, room=1), replace(usual, warps=4)):
        assert product.fault(config) is None


@both
def test_rows_are_the_same_in_parts_and_in_another_order(shape: GemmShape, device: str) -> None:
    product = ExpertProduct.random(shape, copies=1, device=device, rows=9)
    config = launcher(shape).config
    whole = product.first_rows(config, 9)
    some = product.part(4, 7).first_rows(config, 3)
    assert all(torch.equal(one, all_[len(one) // 3 * 4 :][: len(one)]) for one, all_ in zip(some, whole, strict=True))
    turned = product.last_first().first_rows(config, 2)
    for one, all_ in zip(turned, whole, strict=True):
        each = len(one) // 2
        assert torch.equal(one[:each], all_[-each:]) and torch.equal(one[each:], all_[:each])


@pytest.mark.parametrize("shape", [GATE_UP, DOWN], ids=["gate and up", "down"])
def test_routings_take_turns_and_are_those_of_independent_rows(shape: GemmShape) -> None:
    product = ExpertProduct.random(replace(shape, experts=128, per_token=4), copies=40, device="cpu")
    assert product.inputs == 40 and len(product.weights) == 40
    assert len({weight.weight.data_ptr() for weight in product.weights}) == 40
    assert product.weights[0].weight.any(-1).all()
    # Of 128 experts, 8 rows of 4 each have 128 · (1 − (124/128)⁸) between them.
    each = product.weights[0].read_bytes
    assert product.read_bytes(1) == 4 * each
    assert product.read_bytes(8) / each == pytest.approx(128 * (1 - (124 / 128) ** 8), abs=1)


def rightly(product: ExpertProduct, count: int) -> Results:
    """Rows 1 to `count` by the oracle, expert by expert, so that their bits do not depend on how many there are."""
    scores = product.expected["float64"][0]
    if product.first:
        return (scores[: count * product.shape.per_token].half(),)
    return ((product.before.double() + scores).float()[:count],)


def not_written(result: Tensor, count: int) -> Tensor:
    return result.index_fill(1, torch.tensor([5]), float("nan"))


def nudged(rows: int) -> Any:
    """The first row a little off where it is among so many."""
    return lambda result, count: torch.cat((result[:1] * (1 + 1e-3), result[1:])) if count == rows else result


@both
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda result, count: result, None),
        (lambda result, count: result * 1.02, r"differs from float64 by \d\.\de-02"),
        (not_written, r"differs from float64 by nan"),
        (nudged(4), r"gives rows 1 to 4 other bits than among 8"),
        (nudged(1), r"gives rows 1 to 1 other bits than among 8"),
    ],
    ids=["right", "too large", "not written", "other bits among four", "other bits alone"],
)
def test_a_planted_fault_is_seen(
    shape: GemmShape, spoil: Any, message: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def first_rows(product: ExpertProduct, config: ExpertConfig, count: int) -> Results:
        return tuple(spoil(result, count) for result in rightly(product, count))

    monkeypatch.setattr(ExpertProduct, "first_rows", first_rows)
    fault = ExpertProduct.random(shape, 1, "cpu").fault(launcher(shape).config)
    assert (fault, message) == (None, None) if message is None else fault is not None and re.fullmatch(message, fault)


@both
def test_the_oracle_is_that_of_all_matrices(shape: GemmShape) -> None:
    product = ExpertProduct.random(shape, 1, "cpu")
    matrices = torch.stack([product.weights[0].matrix(expert) for expert in range(shape.experts)])
    experts, weights = oracles.chosen_experts(product.logits[0], shape.per_token)
    bias = product.weights[0].bias
    if product.first:
        want = oracles.expert_gate_up(product.x, matrices, bias, experts, 1.702, 7.0)
    else:
        want = oracles.expert_down(product.x, matrices, bias, experts, weights)
    assert torch.equal(product.expected["float64"][0], want) and 0.3 < want.std() < 3
