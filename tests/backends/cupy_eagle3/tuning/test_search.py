from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.backends.cupy_eagle3.kernels.compiling import distinct
from specgate.backends.cupy_eagle3.kernels.matmul.gemm_config import GemmConfig
from specgate.backends.cupy_eagle3.kernels.matmul.matmul_rows import Epilogue
from specgate.backends.cupy_eagle3.tuned.lookup import Tuned
from specgate.backends.cupy_eagle3.tuning.gemm_candidates import candidates
from specgate.backends.cupy_eagle3.tuning.product import ROWS
from specgate.backends.cupy_eagle3.tuning.search import SCREEN, SHORTLIST, fastest
from specgate.backends.cupy_eagle3.tuning.weights import weights_of
from specgate.errors import UsageError
from specgate.tuning.gemm_files import read_tuned
from specgate.tuning.gemms import GemmShape

CONFIGS = [replace(GemmConfig(), warps=4 * (i + 1)) for i in range(SHORTLIST + 3)]
times = st.lists(st.tuples(*[st.integers(1, 50)] * len(ROWS)), min_size=1, max_size=len(CONFIGS))


@given(times)
def test_the_choice_has_the_least_sum_of_the_default_and_those_that_are_fastest_at_the_screened_rows(
    drawn: list[tuple[int, ...]],
) -> None:
    configs = CONFIGS[: len(drawn)]
    us = {config: dict(zip(ROWS, map(float, row), strict=True)) for config, row in zip(configs, drawn, strict=True)}
    best, found, default = fastest(configs, lambda config, rows: us[config][rows])
    assert found == us[best] and default == us[configs[0]]
    assert sum(found.values()) <= sum(default.values())
    # Whoever would have been better in all was slower than SHORTLIST others at the rows of the screen.
    for better in (config for config in configs if sum(us[config].values()) < sum(found.values())):
        assert sum(us[config][SCREEN] <= us[better][SCREEN] for config in configs if config != better) >= SHORTLIST


def test_weights_are_gathered_from_their_products_the_largest_first() -> None:
    shapes = [
        GemmShape("EAGLE3_O", 64, 64, 1),
        GemmShape("TARGET_O", 64, 64, 8),
        GemmShape("TARGET_O", 64, 64, 1),
        GemmShape("TARGET_LM_HEAD", 1001, 64, 1),
        GemmShape("TARGET_QKV", 64, 64, 1),
    ]
    large, small = weights_of(shapes)
    assert (large.n, large.k, large.tags, large.size) == (1001, 64, ("TARGET_LM_HEAD",), 2 * 1001 * 64)
    assert small.tags == ("EAGLE3_O", "TARGET_O", "TARGET_QKV")
    assert small.epilogues == (Epilogue.PLAIN, Epilogue.RESIDUAL)


def test_of_configurations_that_are_the_same_kernel_the_first_is_tried() -> None:
    (weight,) = weights_of([GemmShape("TARGET_FFN_GATE_UP", 28672, 4096, 1)])
    configs = (GemmConfig(), *candidates(weight.n, weight.k))
    kernels = [(config, (weight.launcher(Epilogue.SWIGLU, config).spec,)) for config in configs]
    kept = distinct(kernels)
    assert next(iter(kept)) == GemmConfig()
    assert len(set(kept.values())) == len(kept) < len(set(configs))
    assert set(kept.values()) == {of for _, of in kernels}


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        (GemmShape("TARGET_MOE", 64, 64, 1), r"shape TARGET_MOE: no product of back end cupy\n  known: EAGLE3_FC, "),
        (GemmShape("TARGET_O", 64, 48, 1), r"shape TARGET_O 64 x 48: k must be a multiple of 32"),
        (GemmShape("TARGET_FFN_GATE_UP", 65, 64, 1), r"65 x 64: n counts gate and up rows: an even number"),
    ],
)
def test_a_shape_that_the_engine_does_not_have_is_refused(shape: GemmShape, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        weights_of([shape])


@pytest.mark.gpu
def test_what_was_tuned_here_is_found_here_and_merged_with_what_was_there(tmp_path: Path) -> None:
    from specgate.backends.cupy_eagle3.tuning.search import Tuner
    from specgate.tuning.gemm_tuning import tune_into

    tuner, file = Tuner(), tmp_path / "tuned.json"
    shapes = [GemmShape("TARGET_O", 576, 576, 4), GemmShape("EAGLE3_FFN_GATE_UP", 3072, 576, 1)]
    for shape in shapes:
        (found,) = tune_into(file, tuner, [shape], seconds=600)
        assert found.weight == shape.weight and found.tried > 1
        assert set(found.us) == set(found.default_us) == set(ROWS)
        assert sum(found.us.values()) <= sum(found.default_us.values())
    assert {gemm.weight for gemm in read_tuned(file).gemms} == {shape.weight for shape in shapes}
    assert not tuner.untuned(shapes, file)
    assert all(Tuned.on(tuner.device, file).find(shape) for shape in shapes)
    assert json.loads(file.read_text())["device"] == tuner.device


@pytest.mark.gpu
def test_no_weight_is_begun_once_the_time_is_spent() -> None:
    from specgate.backends.cupy_eagle3.tuning.search import Tuner

    assert not list(Tuner().tune([GemmShape("TARGET_O", 576, 576, 4)], seconds=1e-9))
