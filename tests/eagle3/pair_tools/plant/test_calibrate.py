from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm

from specgate.backends.eagle3.lib.planted.recipe import Recipe
from specgate.backends.eagle3.lib.planted.tables import tables
from specgate.backends.eagle3.lib.planted.target import PlantedTarget
from specgate.backends.eagle3.pair_tools.plant import calibrate as module
from specgate.backends.eagle3.pair_tools.plant.calibrate import OutOfReach, calibrate, last_states, made_target
from specgate.backends.eagle3.pair_tools.plant.geometries import tiny
from specgate.backends.eagle3.pair_tools.plant.orbit import Orbit
from specgate.backends.eagle3.pair_tools.plant.thresholds import thresholds
from tests.eagle3.pair_tools.plant.conftest import CPU

SHAPE = tiny()
WALK = 256


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WALK", WALK)
    monkeypatch.setattr(module, "TEXTS", 2)
    monkeypatch.setattr(module, "REFINEMENTS", 0)


def states_of(recipe: Recipe) -> tuple[torch.Tensor, torch.Tensor]:
    """Last states of two walks, and the draft rows planted to follow them."""
    orbit = Orbit(recipe, tables(recipe, SHAPE.target.vocab))
    texts = [orbit.text(128, WALK, 0.8, f"walk {i}") for i in range(2)]
    rows = [orbit.planted_row(text, at) for text in texts for at in range(len(text) - 1 - WALK, len(text) - 1)]
    return last_states(made_target(recipe, SHAPE, torch.float32, "cpu"), texts, WALK, "cpu"), torch.tensor(rows)


@pytest.mark.parametrize("name", ["A", "B"])
def test_a_threshold_is_where_the_real_lm_head_begins_to_say_the_planted_token(name: str) -> None:
    recipe = Recipe("B" if name == "B" else "A", 1, 512, 1.0, SHAPE.boundaries)
    integers = tables(recipe, SHAPE.target.vocab)
    states, planted = states_of(recipe)
    limits = thresholds(recipe, SHAPE.target, integers, states, planted)
    for signal in (0.5, 0.8, 1.2):
        head = PlantedTarget(replace(recipe, signal=signal), SHAPE.target, integers, torch.device("cpu"))
        weight = head.make("lm_head.weight", (SHAPE.target.vocab, SHAPE.target.hidden)).float()
        says_planted = (states @ weight.T).argmax(dim=1) == integers.ids[planted]
        assert float((says_planted != (limits <= signal)).float().mean()) < 0.005


def test_the_share_agrees_with_the_law_of_the_largest_of_many_normal_logits() -> None:
    """p = E[Φ(κ + z)^(V−1)] with κ = λ/√(1+λ²) · mean of n(h)·F."""
    recipe = Recipe("A", 1, 512, 0.76, SHAPE.boundaries)
    integers = tables(recipe, SHAPE.target.vocab)
    states, planted = states_of(recipe)
    head = PlantedTarget(recipe, SHAPE.target, integers, torch.device("cpu"))
    strength = float((states * head.signal_rows(planted)).sum(dim=1).mean()) / 3.0
    kappa = recipe.signal / math.hypot(1, recipe.signal) * strength
    others = SHAPE.target.vocab - 1
    expected, _ = quad(lambda z: norm.pdf(z) * norm.cdf(kappa + z) ** others, -8, 8)
    limits = thresholds(recipe, SHAPE.target, integers, states, planted)
    assert float((limits <= recipe.signal).float().mean()) == pytest.approx(expected, abs=0.05)


def test_a_share_that_no_signal_gives_is_refused_with_what_is_reachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specgate.backends.eagle3.pair_tools.plant.thresholds.STRONGEST", 0.5)
    recipe = Recipe("A", 1, 512, 1.0, SHAPE.boundaries)
    with pytest.raises(OutOfReach) as caught:
        calibrate(recipe, SHAPE, 0.95, 128, CPU)
    assert 0.2 < caught.value.reachable < 0.8
