"""Whole steps of a target that is split among two or four ranks, on a CPU, each kernel run from its own source."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specgate.eagle3.geometry import ExpertGeometry
from specgate.pair_tools.plant.expert_geometries import mixture, plain_draft
from specgate.pair_tools.plant.geometries import PairGeometry, dense
from tests.backends.cupy_eagle3.engine.ranks.sides import Alone, check_split, decoded_alone
from tests.backends.cupy_eagle3.gpu_pairs import RECIPE_A, RECIPE_EXPERTS, shape
from tests.backends.cupy_eagle3.kernels.peers.ranks_on_host import Ranks

PAIR = replace(shape(8, 4, 64, hidden=128), draft=shape(2, 1, 64, hidden=128).draft)
RECIPE = replace(RECIPE_A, signal=0.95)
OF_EXPERTS = mixture(
    dense(4, 128, 64, heads=4, kv_heads=2, head_dim=64, vocab=2048, positions=4096),
    ExpertGeometry(8, 2, mxfp4=True),
    window=32,
)
EXPERTS = PairGeometry(OF_EXPERTS, plain_draft(OF_EXPERTS, 512, 128), (1, 2, 4), context=256, written=False)
RECIPE_OF_EXPERTS = replace(RECIPE_EXPERTS, signal=0.95)


@pytest.fixture(scope="module")
def alone(four: Ranks) -> Alone:
    return decoded_alone(PAIR, RECIPE, four)


@pytest.mark.slow("runs whole steps from their source")
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_split_target_speculates_bit_for_bit_and_is_near_the_whole_one(four: Ranks, alone: Alone, ranks: int) -> None:
    check_split(PAIR, RECIPE, four, alone, ranks)


@pytest.mark.slow("runs whole steps from their source")
def test_a_split_mixture_of_experts_speculates_bit_for_bit_and_is_near_the_whole_one(four: Ranks) -> None:
    check_split(EXPERTS, RECIPE_OF_EXPERTS, four, decoded_alone(EXPERTS, RECIPE_OF_EXPERTS, four), 2)
