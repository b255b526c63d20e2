from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.backends.eagle3.cupy.kernels.compiling import distinct
from specgate.backends.eagle3.cupy.kernels.experts.expert_config import ExpertConfig
from specgate.backends.eagle3.cupy.kernels.matmul.gemm_config import GemmConfig
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import Epilogue
from specgate.backends.eagle3.cupy.tuned.lookup import Tuned
from specgate.backends.eagle3.cupy.tuning.expert_weight import ExpertWeight
from specgate.backends.eagle3.cupy.tuning.gemm_weight import GemmWeight, candidates
from specgate.backends.eagle3.cupy.tuning.product import ROWS
from specgate.backends.eagle3.cupy.tuning.search import SCREEN, SHORTLIST, fastest
from specgate.backends.eagle3.cupy.tuning.weights import weights_of
from specgate.backends.eagle3.nouns.gemms import GemmShape, read_tuned
from specgate.errors import UsageError

CONFIGS = [replace(GemmConfig(), warps=4 * (i + 1)) for i in range(SHORTLIST + 3)]
times = st.lists(st.tuples(*[st.integers(1, 50)] * len(ROWS)), min_size=1, max_size=len(CONFIGS))


@given(times)
def test_the_choice_has_the_least_sum_of_the_default_and_those_that_are_fastest_at_the_screened_rows(
    drawn: list[tuple[int, ...]],
) -> None:
    configs = CONFIGS[: len(drawn)]
    us = {config: dict(zip(ROWS, map(float, row), strict=True)) for config, row in zip(configs, drawn, strict=True)}
    best, result, default = fastest(configs, lambda config, rows: us[config][rows])
    assert result == us[best] and default == us[configs[0]]
    assert sum(result.values()) <= sum(default.values())
    # Whoever would have been better in all was slower than SHORTLIST others at the rows of the screen.
    for better in (config for config in configs if sum(us[config].values()) < sum(result.values())):
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
    assert isinstance(small, GemmWeight) and small.epilogues == (Epilogue.PLAIN, Epilogue.RESIDUAL)


def test_of_configurations_that_are_the_same_kernel_the_first_is_tried() -> None:
    (weight,) = weights_of([GemmShape("TARGET_FFN_GATE_UP", 28672, 4096, 1)])
    configs = (GemmConfig(), *candidates(weight.n, weight.k))
    kernels = [(config, weight.launches(config)) for config in configs]
    kept = distinct(kernels)
    assert next(iter(kept)) == GemmConfig()
    assert len(set(kept.values())) == len(kept) < len(set(configs))
    assert set(kept.values()) == {of for _, of in kernels}


def test_of_products_that_read_more_the_time_for_each_byte_counts() -> None:
    some, many = CONFIGS[:2]
    us = {some: {1: 10.0, 4: 40.0, 8: 80.0}, many: {1: 14.0, 4: 40.0, 8: 75.0}}
    assert fastest([some, many], lambda config, rows: us[config][rows])[0] == many
    size = {1: 1.0, 4: 4.0, 8: 8.0}
    assert fastest([some, many], lambda config, rows: us[config][rows], size) == (some, us[some], us[some])


def test_each_product_of_experts_is_a_weight_of_its_own() -> None:
    shapes = [
        GemmShape("TARGET_LM_HEAD", 32000, 2880, 1),
        GemmShape("TARGET_O", 2880, 2880, 1),
        GemmShape("TARGET_EXPERT_GATE_UP", 5760, 2880, 4, 128, 4),
        GemmShape("TARGET_EXPERT_GATE_UP", 2880, 2880, 4, 128, 4),
        GemmShape("TARGET_EXPERT_DOWN", 2880, 2880, 1, 128, 4),
        GemmShape("TARGET_EXPERT_DOWN", 2880, 2880, 4, 128, 4),
        GemmShape("TARGET_EXPERT_DOWN", 2880, 2880, 4, 32, 4),
    ]
    weights = weights_of(shapes)
    assert {weight.key for weight in weights} == {shape.key for shape in shapes} and len(weights) == 6
    assert [type(weight) for weight in weights] == [GemmWeight, *[ExpertWeight] * 4, GemmWeight]
    gate_up = weights[1]
    # Numbers of four bits, and a scale of a byte for each 32: of the four experts that a row has.
    assert gate_up.size == 4 * 5760 * 2880 * 17 // 32 and gate_up.kernel == "expert_gate_up.cu"
    assert str(gate_up) == "TARGET_EXPERT_GATE_UP 5760 x 2880 of 128 experts"
    assert gate_up.default == ExpertConfig.usual(2880, 360, 2) and gate_up.mixture == (128, 4)


def test_blocks_that_are_not_compiled_into_a_kernel_make_another_launch_of_it() -> None:
    (weight,) = weights_of([GemmShape("TARGET_EXPERT_DOWN", 2880, 2880, 4, 128, 4)])
    few, many = (replace(weight.default, blocks_per_sm=blocks) for blocks in (1, 3))
    assert [spec for spec, _ in weight.launches(few)] == [spec for spec, _ in weight.launches(many)]
    kept = distinct((config, weight.launches(config)) for config in (many, few, many))
    assert [*kept] == [many, few]


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (GemmShape("TARGET_MOE", 64, 64, 1), r"shape TARGET_MOE: no product of back end cupy\n  known: EAGLE3_FC, "),
        (GemmShape("TARGET_O", 64, 48, 1), r"shape TARGET_O 64 x 48: k must be a multiple of 32"),
        (GemmShape("TARGET_FFN_GATE_UP", 65, 64, 1), r"65 x 64: n counts gate and up rows: an even number"),
        (
            GemmShape("TARGET_O", 64, 64, 1, 8, 2),
            r"TARGET_O: no product of experts .*\n  known: TARGET_EXPERT_GATE_UP, ",
        ),
        (GemmShape("TARGET_EXPERT_DOWN", 64, 64, 1), r"TARGET_EXPERT_DOWN: experts and per_token are missing"),
        (GemmShape("TARGET_EXPERT_DOWN", 64, 48, 1, 8, 2), r"64 x 48 of 8 experts: k must be a multiple of 32"),
        (GemmShape("TARGET_EXPERT_DOWN", 72, 64, 1, 8, 2), r"72 x 64 of 8 experts: n must be a multiple of 16"),
        (GemmShape("TARGET_EXPERT_DOWN", 64, 64, 1, 257, 2), r"257 experts: 1 to 256 are supported"),
        (GemmShape("TARGET_EXPERT_DOWN", 64, 64, 1, 8, 9), r"9 experts of a token: 1 to 8 are supported"),
    ],
)
def test_a_shape_that_the_engine_does_not_have_is_refused(shape: GemmShape, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        weights_of([shape])


@pytest.mark.gpu
def test_what_was_tuned_here_is_found_here_and_merged_with_what_was_there(tmp_path: Path) -> None:
    from specgate.backends.eagle3.cupy.tuning.search import Tuner
    from specgate.backends.eagle3.tuning.gemm_tuning import tune_into

    tuner, file = Tuner(), tmp_path / "tuned.json"
    shapes = [
        GemmShape("TARGET_O", 576, 576, 4),
        GemmShape("EAGLE3_FFN_GATE_UP", 3072, 576, 1),
        GemmShape("TARGET_EXPERT_GATE_UP", 256, 512, 4, 8, 2),
        GemmShape("TARGET_EXPERT_DOWN", 512, 128, 4, 8, 2),
    ]
    for shape in shapes:
        (tuned,) = tune_into(file, tuner, [shape], seconds=600)
        assert tuned.key == shape.key and tuned.tried > 1
        assert set(tuned.us) == set(tuned.default_us) == set(ROWS)
        assert tuned.experts or sum(tuned.us.values()) <= sum(tuned.default_us.values())
    assert {gemm.key for gemm in read_tuned(file).gemms} == {shape.key for shape in shapes}
    assert not tuner.untuned(shapes, file)
    known = Tuned.on(tuner.device, file)
    assert all((known.find_experts if shape.experts else known.find)(shape) for shape in shapes)
    assert json.loads(file.read_text())["device"] == tuner.device


@pytest.mark.gpu
def test_no_weight_is_begun_once_the_time_is_spent() -> None:
    from specgate.backends.eagle3.cupy.tuning.search import Tuner

    assert not list(Tuner().tune([GemmShape("TARGET_O", 576, 576, 4)], seconds=1e-9))
