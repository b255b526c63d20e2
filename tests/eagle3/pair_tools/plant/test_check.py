from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from specgate.backends.eagle3.lib.planted.tables import tables
from specgate.backends.eagle3.pair_tools.plant.check import Load, check, pair_recipe, predictions
from specgate.backends.eagle3.pair_tools.plant.decoder import Decoder
from specgate.backends.eagle3.pair_tools.plant.orbit import Orbit
from specgate.backends.eagle3.pair_tools.plant.thresholds import acceptance_length
from specgate.backends.eagle3.reference.open import open_engine
from specgate.checkpoints.hf_keys import read_config
from specgate.contract import Budget, PairRef, Role
from specgate.contract.acceptance import AcceptanceRecord
from specgate.contract.protocols import OpenRequest
from specgate.errors import UsageError
from tests.eagle3.pair_tools.plant.accepts import expected_accepts
from tests.eagle3.pair_tools.plant.conftest import CONTEXT, CPU
from tests.pairs.tiny import write_random_pair

LOAD = Load(CONTEXT, prompts=8, steps=24)
PAIRS = pytest.mark.parametrize("which", ["pair_a", "pair_b"])


@pytest.mark.parametrize(
    ("which", "dtype", "k"),
    [("pair_a", "float32", 5), ("pair_b", "float32", 3), ("pair_a", "bfloat16", 3), ("pair_experts", "float32", 3)],
)
def test_acceptance_is_what_the_planted_tokens_imply(
    which: str, dtype: str, k: int, request: pytest.FixtureRequest
) -> None:
    pair: PairRef = request.getfixturevalue(which)
    for m in check(pair, [k], LOAD, Decoder(dtype, "cpu")):
        assert m.acceptance_length == pytest.approx(acceptance_length(m.planted_share, m.k), rel=0.04)
        assert m.planted_share == pytest.approx(read_share(pair), abs=0.04)
        assert m.faithful_share >= 0.999
        assert m.shortest_period is None


def test_what_a_pair_with_experts_touches_is_in_its_config(pair_experts: PairRef) -> None:
    assert pair_experts.draft is not None and predictions(pair_experts)[3] == pytest.approx(3.0, abs=0.02)
    section = read_config(pair_experts.draft).part("planted")
    touched = section.part("measured").values["experts_touched"]
    assert isinstance(touched, list) and len(touched) == 8
    assert touched[0] == 2 and touched == sorted(touched)
    assert section.values["expert_overlap"] == 0.5


def read_share(pair: PairRef) -> float:
    return read_config(pair.target).part("planted").part("calibration").number("planted_share")


@PAIRS
def test_counters_are_the_histogram_that_the_tokens_imply(which: str, request: pytest.FixtureRequest) -> None:
    pair: PairRef = request.getfixturevalue(which)
    recipe = pair_recipe(pair)
    orbit, k = Orbit(recipe, tables(recipe, 2048)), 3
    engine = open_engine(OpenRequest(pair, "float32", 4, CONTEXT + 200, k, False, {"device": "cpu"}))
    prompts = replace(LOAD, prompts=4).token_ids(2048)
    engine.prefill(prompts, draft=True)
    decoded = engine.decode(Role(k), Budget(steps=32), ())
    record = AcceptanceRecord.from_steps(k, decoded.accepted, decoded.drafted, 0, 0)
    expected = Counter[int]()
    for slot, (prompt, tokens) in enumerate(zip(prompts, decoded.tokens, strict=True)):
        accepts = expected_accepts(orbit, prompt, tokens, k)
        assert accepts == [row[slot] for row in decoded.accepted][: len(accepts)]
        # What the last cycle accepted lies at the text's end, and the text does not say why it stopped there.
        expected.update([*accepts, *(row[slot] for row in decoded.accepted[len(accepts) :])])
        assert len(accepts) >= 31
    assert record.hist == tuple(expected[i] for i in range(k + 1))


def test_the_prediction_follows_the_law_from_the_share_that_was_calibrated(pair_a: PairRef) -> None:
    share = read_share(pair_a)
    predicted = predictions(pair_a)
    assert list(predicted) == [1, 2, 3, 4, 5]
    assert all(length == pytest.approx(acceptance_length(share, k), abs=2e-3) for k, length in predicted.items())
    assert predicted[3] == pytest.approx(3.0, abs=0.02)


def test_a_pair_that_was_not_planted_is_refused(tmp_path: Path) -> None:
    pair = PairRef("random", *write_random_pair(tmp_path, seed=1))
    with pytest.raises(UsageError, match="its draft was not planted"):
        list(check(pair, [3], LOAD, CPU))


def test_a_context_without_enough_history_is_refused(pair_b: PairRef) -> None:
    with pytest.raises(UsageError, match=r"context 60\n.*at least 67"):
        list(check(pair_b, [3], Load(60, 1, 1), CPU))
