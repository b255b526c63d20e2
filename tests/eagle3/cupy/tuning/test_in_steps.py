"""Configurations chosen by whole steps: what is chosen, where it is found, what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.tensor_parallel.pairs import write_configs
from specgate.backends.eagle3.cupy.kernels.matmul.gemm_config import GemmConfig
from specgate.backends.eagle3.cupy.tuned.lookup import Tuned, WeightConfig
from specgate.backends.eagle3.cupy.tuning.expert_weight import ExpertWeight
from specgate.backends.eagle3.cupy.tuning.gemm_weight import GemmWeight, retilings
from specgate.backends.eagle3.cupy.tuning.search import Tuner
from specgate.backends.eagle3.nouns.gemms import Point, StepsRequest, TunedGemms, write_tuned
from specgate.backends.eagle3.pair_tools.plant.geometries import EXPERT_GEOMETRIES
from specgate.backends.eagle3.tuning.gemm_tuning import refine_into, tuning_backend
from specgate.contract import PairRef
from specgate.errors import UsageError
from tests.eagle3.cupy.tuned.files import experts, gemm
from tests.pairs.tiny import write_random_pair

pytestmark = pytest.mark.gpu


@pytest.fixture
def request_(tmp_path: Path) -> StepsRequest:
    folders = write_random_pair(tmp_path, seed=8, heads=2, kv_heads=1, head_dim=64, intermediate=96)
    return StepsRequest(PairRef("small", *folders), points=(Point(256, 1), Point(128, 4)), k=2)


def test_weights_are_chosen_anew_in_steps_and_found_by_the_next_engine(request_: StepsRequest, tmp_path: Path) -> None:
    tuner, file = Tuner(), tmp_path / "tuned.json"
    shapes = tuning_backend("cupy", here=True).gemm_shapes(request_.pair, (1, 4), (2,))
    known = TunedGemms(tuner.device, tuner.compute_capability)
    for n, k in {shape.weight for shape in shapes}:
        known = known.with_(gemm(n, k, tags=tuple(sorted({s.tag for s in shapes if s.weight == (n, k)}))))
    write_tuned(file, known)
    tuned = list(refine_into(file, tuner, request_, 600))
    assert tuned and {gemm.weight for gemm in tuned} <= {shape.weight for shape in shapes}
    for chosen in tuned:
        steps = chosen.in_steps
        assert steps is not None and steps.before == GemmConfig().stored()
        both = {f"{role} {point}" for role in ("baseline", "spec-2") for point in ("1 x 256", "4 x 128")}
        assert set(steps.us) == set(steps.before_us) == both
        assert steps.tried >= 1
        for shape in (shape for shape in shapes if shape.weight == chosen.weight):
            assert Tuned.on(tuner.device, file).find(shape) == WeightConfig.of(chosen).at(shape.m)


@pytest.mark.parametrize(("tag", "n", "k"), [("TARGET_O", 576, 576), ("EAGLE3_FFN_GATE_UP", 1536, 576)])
def test_work_that_is_moved_otherwise_gives_the_same_bits(tag: str, n: int, k: int) -> None:
    weight, processors = GemmWeight(n, k, (tag,)), 7
    for config in (GemmConfig(), GemmConfig(8, 1), GemmConfig(4, 2)):
        for rows in (1, 4, 16):
            for moved in retilings(config, n, k, processors)[::11]:
                assert weight.same_bits(config, moved, rows), (moved, rows)
    assert not weight.same_bits(GemmConfig(16, 1), GemmConfig(4, 1), 4)


@pytest.mark.parametrize(("tag", "n", "k"), [("TARGET_EXPERT_GATE_UP", 256, 512), ("TARGET_EXPERT_DOWN", 2880, 1440)])
def test_experts_whose_work_is_moved_otherwise_give_the_same_bits(tag: str, n: int, k: int) -> None:
    weight = ExpertWeight(n, k, (tag,), 8, 2)
    for config in {c.warps: c for c in weight.candidates()}.values():
        for rows in (1, 4, 16):
            for moved in [*weight.moved(config, rows), *weight.near(config, config)][::7]:
                assert weight.same_bits(config, moved, rows), (moved, rows)
    if tag == "TARGET_EXPERT_DOWN":  # what gate and up gives is rounded to float16, which hides most differences
        one, other, *_ = {c.warps: c for c in weight.candidates()}.values()
        assert not weight.same_bits(one, other, 4)


def test_experts_are_chosen_anew_in_steps(tmp_path: Path) -> None:
    write_configs(tmp_path, EXPERT_GEOMETRIES["gpt-oss-tiny"](), overlap=0.5)
    pair = PairRef("tiny", tmp_path / "target", tmp_path / "draft")
    tuner, file = Tuner(), tmp_path / "tuned.json"
    shapes = tuning_backend("cupy", here=True).gemm_shapes(pair, (1, 4), (3,))
    known = TunedGemms(tuner.device, tuner.compute_capability)
    for key in {shape.key for shape in shapes}:
        of = [shape for shape in shapes if shape.key == key]
        known = known.with_(
            replace(experts(of[0]), us={1: 99.0})  # so that they take enough of a step
            if of[0].experts
            else gemm(of[0].n, of[0].k, tags=tuple(sorted({s.tag for s in of})), us={1: 0.01})
        )
    write_tuned(file, known)
    tuned = list(refine_into(file, tuner, StepsRequest(pair, (Point(256, 1), Point(128, 4)), 3), 600))
    assert {gemm.tags for gemm in tuned} == {("TARGET_EXPERT_GATE_UP",), ("TARGET_EXPERT_DOWN",)}
    for chosen in tuned:
        assert chosen.in_steps is not None and set(chosen.at_rows) == {1, 4, 16}
        for shape in (shape for shape in shapes if shape.key == chosen.key):
            assert Tuned.on(tuner.device, file).find_experts(shape) == WeightConfig.of(chosen).at(shape.m)


def test_a_weight_that_was_not_tuned_alone_is_refused_with_the_command(request_: StepsRequest, tmp_path: Path) -> None:
    tuner, file = Tuner(), tmp_path / "tuned.json"
    write_tuned(file, TunedGemms(tuner.device, tuner.compute_capability))
    with pytest.raises(UsageError, match=r"is not tuned for .*\n  first run specgate engine tune gemm"):
        list(refine_into(file, tuner, request_, 600))
