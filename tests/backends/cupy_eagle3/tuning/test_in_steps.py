"""Configurations chosen by whole steps: what is chosen, where it is found, what is refused."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from specgate.backends.cupy_eagle3.kernels.matmul_rows import GemmConfig
from specgate.backends.cupy_eagle3.tuning.search import Tuner
from specgate.backends.cupy_eagle3.tuning.tuned import Tuned
from specgate.backends.eagle3.tiny import write_random_pair
from specgate.core import PairRef
from specgate.errors import UsageError
from specgate.tuning.gemm_files import write_tuned
from specgate.tuning.gemm_tuning import refine_into, tuning_backend
from specgate.tuning.gemms import StepsRequest, TunedGemms
from tests.backends.cupy_eagle3.tuning.files import gemm

pytestmark = pytest.mark.gpu


@pytest.fixture
def request_(tmp_path: Path) -> StepsRequest:
    folders = write_random_pair(tmp_path, seed=8, heads=2, kv_heads=1, head_dim=64, intermediate=96)
    return StepsRequest(PairRef("small", *folders), context=256, batch=1, k=2)


def test_weights_are_chosen_anew_in_steps_and_found_by_the_next_engine(request_: StepsRequest, tmp_path: Path) -> None:
    tuner, file = Tuner(), tmp_path / "tuned.json"
    shapes = tuning_backend("cupy", here=True).gemm_shapes(request_.pair, (1,), (2,))
    known = TunedGemms(tuner.device, tuner.compute_capability)
    for n, k in {shape.weight for shape in shapes}:
        known = known.with_(gemm(n, k, tags=tuple(sorted({s.tag for s in shapes if s.weight == (n, k)}))))
    write_tuned(file, known)
    found = list(refine_into(file, tuner, request_, 600))
    assert found and {gemm.weight for gemm in found} <= {shape.weight for shape in shapes}
    for chosen in found:
        steps = chosen.in_steps
        assert steps is not None and steps.before == asdict(GemmConfig())
        assert set(steps.us) == set(steps.before_us) == {"baseline", "spec-2"}
        assert steps.gain >= 0 and steps.tried >= 1
        shape = next(shape for shape in shapes if shape.weight == chosen.weight)
        assert Tuned.on(tuner.device, file).find(shape) == GemmConfig(**chosen.config)


def test_a_weight_that_was_not_tuned_alone_is_refused_with_the_command(request_: StepsRequest, tmp_path: Path) -> None:
    tuner, file = Tuner(), tmp_path / "tuned.json"
    write_tuned(file, TunedGemms(tuner.device, tuner.compute_capability))
    with pytest.raises(UsageError, match=r"is not tuned for .*\n  first run specgate tune gemm"):
        list(refine_into(file, tuner, request_, 600))
