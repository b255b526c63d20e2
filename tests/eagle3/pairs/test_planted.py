"""Planted pairs that ship: sealed, of one another, and with the experts that their recipe implies."""

from __future__ import annotations

from typing import Any

import pytest

from specgate.backends.eagle3.lib.pair import open_draft, open_target
from specgate.backends.eagle3.lib.planted.routing import expected_touched
from specgate.backends.eagle3.pair_tools.plant.check import pair_recipe, predictions
from specgate.backends.eagle3.pairs.shipped import PAIRS
from specgate.checkpoints.hf_keys import PLANTED, read_config
from specgate.pairs.resolve import DEMO


@pytest.mark.parametrize("name", [name for name in PAIRS.names() if name != DEMO])
def test_a_pair_that_ships_is_sealed_names_its_own_target_and_was_measured_as_predicted(name: str) -> None:
    pair = PAIRS.pair(name)
    assert pair.draft is not None
    target = open_target(pair.target)
    assert open_draft(pair.draft, target.geometry, target_sha256=target.sha256()).warnings == ()
    measured = read_config(pair.draft).part(PLANTED).part("measured")
    predicted = predictions(pair)[measured.count("spec")]
    assert abs(measured.number("acceptance_length") / predicted - 1) < 0.04
    touched: Any = measured.values.get("experts_touched", [])
    assert bool(touched) == (target.geometry.experts is not None)
    for tokens, count in enumerate(touched, 1):
        assert target.geometry.experts is not None
        assert abs(count / expected_touched(pair_recipe(pair), target.geometry.experts, tokens) - 1) < 0.02
