"""A mixture of experts that two or four GPUs share. From a prefill to whole runs: the first that fails tells most."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bench.tensor_parallel.pairs import write_configs
from specgate.backends.eagle3.cupy.backend import BACKEND
from specgate.backends.eagle3.cupy.engine.open import CupyEngine
from specgate.backends.eagle3.pair_tools.plant.geometries import PairGeometry, dense, mixture, plain_draft
from specgate.checkpoints.geometry import ExpertGeometry
from specgate.contract import BASELINE, Budget, Role
from specgate.contract.protocols import OpenRequest
from specgate.pairs.resolve import resolve_pair
from tests.eagle3.cupy.engine.ranks.checks import (
    STEPS,
    check_logits,
    check_prefill,
    check_single_launches,
    check_speculation,
    check_whole_requests,
)
from tests.eagle3.cupy.engine.ranks.on_gpus import engine_on, gpus_or_skip
from tests.eagle3.cupy.engine.tracing import same_prefixes
from tests.eagle3.cupy.gpu_pairs import RAGGED, RECIPE_EXPERTS, modes_on_gpu, random_prompts

pytestmark = pytest.mark.gpu

TARGET = mixture(
    dense(4, 512, 128, heads=8, kv_heads=4, head_dim=64, vocab=2048, positions=4096),
    ExpertGeometry(8, 2, mxfp4=True),
    window=32,
)
PAIR = PairGeometry(TARGET, plain_draft(TARGET, 512, 512), (1, 2, 4), context=256, written=False)
RECIPE = replace(RECIPE_EXPERTS, signal=0.95)


@pytest.fixture(scope="module", params=[2, 4])
def gpus(request: pytest.FixtureRequest) -> tuple[torch.device, ...]:
    return gpus_or_skip(request.param)


@pytest.fixture(scope="module")
def shared(gpus: tuple[torch.device, ...]) -> CupyEngine:
    return engine_on(gpus, PAIR, RECIPE)


@pytest.fixture(scope="module")
def alone(gpus: tuple[torch.device, ...]) -> CupyEngine:
    return engine_on(gpus[:1], PAIR, RECIPE)


@pytest.mark.parametrize("name", ["grouped", "one by one", "packed", "torch"])
def test_a_prefill_of_several_gpus_is_near_that_of_one_and_the_same_on_all(
    shared: CupyEngine, alone: CupyEngine, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for made in (shared, alone):
        monkeypatch.setattr(made, "mode", modes_on_gpu()[name])
    check_prefill(shared, alone)


def test_single_launches_and_graphs_give_the_same_tokens(shared: CupyEngine) -> None:
    check_single_launches(shared)


@pytest.mark.parametrize("k", [1, 3, 5])
def test_speculation_keeps_the_baselines_tokens_and_logits_bit_for_bit(shared: CupyEngine, k: int) -> None:
    check_speculation(shared, k)


@pytest.mark.parametrize("k", [0, 3])
def test_all_ranks_touch_the_same_experts(shared: CupyEngine, k: int) -> None:
    shared.prefill(random_prompts(RAGGED), draft=True)
    decoded = shared.decode(Role(k), Budget(steps=STEPS), ())
    assert decoded.experts is not None and min(decoded.experts.touched) > 0
    counts = [rank.b.target.layer.mixture for rank in shared.ranks]
    assert all(one is not None and one.touched[:STEPS].min() > 0 for one in counts)
    first, *others = (one.touched[:STEPS].cpu() for one in counts if one is not None)
    assert all(torch.equal(first, other) for other in others)


def test_whole_requests_end_at_their_limit(shared: CupyEngine) -> None:
    check_whole_requests(shared)


def test_logits_of_several_gpus_are_near_those_of_one(shared: CupyEngine, alone: CupyEngine) -> None:
    check_logits(shared, alone)


def test_a_planted_folder_is_opened_part_by_part(gpus: tuple[torch.device, ...], tmp_path: Path) -> None:
    """Through the door, with the memory plan and the facts: no rank ever has more of a layer than its part."""
    write_configs(tmp_path / "pair", PAIR, overlap=0.5)
    request = OpenRequest(
        pair=resolve_pair(str(tmp_path / "pair"), None, None),
        dtype="bfloat16",
        max_batch=2,
        max_positions=512,
        max_k=3,
        perf_mode=False,
        options={"tp": str(len(gpus))},
    )
    engine = BACKEND.open(request)
    assert isinstance(engine, CupyEngine)
    facts = engine.facts()
    assert facts.traffic is not None and facts.traffic.gpus == len(gpus)
    engine.prefill(random_prompts([70, 200]), draft=True)
    plain = engine.decode(BASELINE, Budget(steps=4 * STEPS), ())
    assert same_prefixes(plain.tokens, engine.decode(Role(3), Budget(steps=STEPS), ()).tokens)
