"""Steps whose products are given configurations to try, on a device that computes nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench.tensor_parallel.pairs import write_configs
from specgate.backends.eagle3.cupy.kernels.experts.launchers import ExpertGateUp
from specgate.backends.eagle3.cupy.kernels.matmul.gemm_config import GemmConfig
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import MatmulRows
from specgate.backends.eagle3.cupy.tuned.lookup import NOTHING_TUNED, WeightConfig
from specgate.backends.eagle3.cupy.tuning.steps import Steps
from specgate.backends.eagle3.cupy.tuning.weights import weights_of
from specgate.backends.eagle3.nouns.gemms import Point, StepsRequest
from specgate.backends.eagle3.pair_tools.plant.geometries import EXPERT_GEOMETRIES
from specgate.contract import PairRef
from tests.eagle3.cupy.bench.staged import no_launches
from tests.pairs.tiny import write_random_pair

OTHER, ELSEWHERE = (replace(GemmConfig(), stages=stages) for stages in (1, 2))


@pytest.fixture
def steps(tmp_path: Path) -> Steps:
    folders = write_random_pair(tmp_path, seed=8, heads=2, kv_heads=1, head_dim=64, intermediate=96)
    request = StepsRequest(PairRef("small", *folders), points=(Point(256, 1), Point(128, 4)), k=2)
    no_stream: Any = SimpleNamespace()
    return Steps(request, NOTHING_TUNED, no_stream, torch.device("meta"))


def configs(steps: Steps, weight: tuple[int, int]) -> dict[tuple[str, str], GemmConfig]:
    """(step, path) → configuration, of all products with `weight`."""
    return {
        (step, path): kernel.config
        for step, stage in steps.stages.items()
        for path, kernel in stage.cycle.kernels().items()
        if isinstance(kernel, MatmulRows) and kernel.weight == weight
    }


def test_a_weights_products_get_what_is_tried_and_no_others_do(steps: Steps) -> None:
    for weight in weights_of(steps.shapes):
        others = {w.tags: configs(steps, (w.n, w.k)) for w in weights_of(steps.shapes) if w != weight}
        places = steps.places(weight)
        assert len(places) == len(configs(steps, (weight.n, weight.k)))
        steps.retile(places, WeightConfig(GemmConfig(8, 1)))
        tried = configs(steps, (weight.n, weight.k))
        assert {config.split for config in tried.values()} == {(8, 1)}
        assert others == {w.tags: configs(steps, (w.n, w.k)) for w in weights_of(steps.shapes) if w != weight}


def test_some_of_a_weights_products_keep_what_they_have(steps: Steps) -> None:
    weight = next(weight for weight in weights_of(steps.shapes) if "TARGET_QKV" in weight.tags)
    before = configs(steps, (weight.n, weight.k))
    all_rows = {place.kernel.rows for place in steps.places(weight)}
    here = [place for place in steps.places(weight) if place.kernel.rows == min(all_rows)]
    chosen = WeightConfig(GemmConfig(8, 1), {min(all_rows): GemmConfig(8, 1, 2)})
    steps.retile(here, chosen)
    after = configs(steps, (weight.n, weight.k))
    changed = {place for place in after if after[place] != before[place]}
    assert changed and {step for step, _ in changed} == {place.step for place in here}
    rows = {
        kernel.rows
        for step, path in changed
        if isinstance(kernel := steps.stages[step].cycle.kernels()[path], MatmulRows)
    }
    assert rows == {min(all_rows)}


@pytest.fixture
def steps_of_experts(tmp_path: Path) -> Steps:
    write_configs(tmp_path, EXPERT_GEOMETRIES["gpt-oss-tiny"](), overlap=0.5)
    pair = PairRef("tiny", tmp_path / "target", tmp_path / "draft")
    no_stream: Any = SimpleNamespace()
    return Steps(StepsRequest(pair, (Point(256, 1), Point(128, 4)), 3), NOTHING_TUNED, no_stream, torch.device("meta"))


def test_products_of_experts_get_what_is_tried_at_their_rows_alone(steps_of_experts: Steps) -> None:
    steps = steps_of_experts
    (weight,) = (w for w in weights_of(steps.shapes) if w.tags == ("TARGET_EXPERT_GATE_UP",))
    places = steps.places(weight)
    assert {place.kernel.rows for place in places} == {1, 4, 16} and len(places) == 4
    assert {type(place.kernel) for place in places} == {ExpertGateUp}
    tried = replace(weight.default, warps=8, ring=1, tiles=1)
    steps.retile(places, WeightConfig(tried, {1: replace(tried, blocks_per_sm=1), 4: tried}))
    now = {place.kernel.rows: place.kernel.config.stored() for place in steps.places(weight)}
    assert {config["warps"] for config in now.values()} == {8}
    assert (now[1]["blocks_per_sm"], now[4]["blocks_per_sm"]) == (1, tried.blocks_per_sm) == (1, 3)
    (down,) = (w for w in weights_of(steps.shapes) if w.tags == ("TARGET_EXPERT_DOWN",))
    assert all(place.kernel.config.split == down.default.split for place in steps.places(down))
    few = [place for place in steps.places(weight) if place.kernel.rows == 1]
    for moved in (*weight.moved(tried, 1), *weight.near(tried, tried)):
        assert moved.split == tried.split
        steps.retile(few, WeightConfig(moved))
    assert {place.kernel.config.warps for place in steps.places(weight)} == {8}


def test_launches_of_experts_are_those_of_all_layers(steps_of_experts: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    no_launches(monkeypatch)
    for weight in weights_of(steps_of_experts.shapes):
        if weight.tags[0].startswith("TARGET_EXPERT"):
            assert steps_of_experts.launches(weight) == 4


def test_launches_of_a_weight_are_those_of_the_step_that_has_most(
    steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_launches(monkeypatch)
    target = next(weight for weight in weights_of(steps.shapes) if "TARGET_FFN_GATE_UP" in weight.tags)
    assert steps.launches(target) >= next(iter(steps.stages.values())).geometry.target.layers
