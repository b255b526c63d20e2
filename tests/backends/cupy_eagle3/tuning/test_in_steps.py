"""Configurations chosen by whole steps: what is chosen, where it is found, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from specgate.backends.cupy_eagle3.kernels.matmul.gemm_config import GemmConfig
from specgate.backends.cupy_eagle3.tuned.lookup import Tuned, WeightConfig
from specgate.backends.cupy_eagle3.tuning.gemm_candidates import retilings
from specgate.backends.cupy_eagle3.tuning.in_steps import same_bits
from specgate.backends.cupy_eagle3.tuning.search import Tuner
from specgate.backends.cupy_eagle3.tuning.weights import Weight
from specgate.backends.eagle3.tiny import write_random_pair
from specgate.core import PairRef
from specgate.errors import UsageError
from specgate.tuning.gemm_files import write_tuned
from specgate.tuning.gemm_tuning import refine_into, tuning_backend
from specgate.tuning.gemms import Point, StepsRequest, TunedGemms
from tests.backends.cupy_eagle3.tuned.files import gemm

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
    found = list(refine_into(file, tuner, request_, 600))
    assert found and {gemm.weight for gemm in found} <= {shape.weight for shape in shapes}
    for chosen in found:
        steps = chosen.in_steps
        assert steps is not None and steps.before == GemmConfig().stored()
        both = {f"{role} {point}" for role in ("baseline", "spec-2") for point in ("1 x 256", "4 x 128")}
        assert set(steps.us) == set(steps.before_us) == both
        assert steps.tried >= 1
        for shape in (shape for shape in shapes if shape.weight == chosen.weight):
            assert Tuned.on(tuner.device, file).find(shape) == WeightConfig.of(chosen).at(shape.m)


@pytest.mark.parametrize(("tag", "n", "k"), [("TARGET_O", 576, 576), ("EAGLE3_FFN_GATE_UP", 1536, 576)])
def test_work_that_is_moved_otherwise_gives_the_same_bits(tag: str, n: int, k: int) -> None:
    weight, processors = Weight(n, k, (tag,)), 7
    for config in (GemmConfig(), GemmConfig(8, 1), GemmConfig(4, 2)):
        for rows in (1, 4, 16):
            for moved in retilings(config, n, k, processors)[::11]:
                assert same_bits(weight, config, moved, rows), (moved, rows)
    assert not same_bits(weight, GemmConfig(16, 1), GemmConfig(4, 1), 4)


def test_a_weight_that_was_not_tuned_alone_is_refused_with_the_command(request_: StepsRequest, tmp_path: Path) -> None:
    tuner, file = Tuner(), tmp_path / "tuned.json"
    write_tuned(file, TunedGemms(tuner.device, tuner.compute_capability))
    with pytest.raises(UsageError, match=r"is not tuned for .*\n  first run specgate tune gemm"):
        list(refine_into(file, tuner, request_, 600))
