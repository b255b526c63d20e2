"""The products that cost the time, with the default and the tuned configuration, at every number of rows of a tile."""

from __future__ import annotations

import pytest
import torch

from specgate.backends.eagle3.cupy.bench.oracles import relative_error
from specgate.backends.eagle3.cupy.kernels.matmul.gemm_config import GemmConfig
from specgate.backends.eagle3.cupy.tuned.gemms import EPILOGUES
from specgate.backends.eagle3.cupy.tuned.lookup import Tuned
from specgate.backends.eagle3.cupy.tuning.expert_product import ExpertProduct, launcher
from specgate.backends.eagle3.cupy.tuning.expert_weight import candidates as candidates_of_experts
from specgate.backends.eagle3.cupy.tuning.gemm_weight import candidates
from specgate.backends.eagle3.cupy.tuning.product import MOST, Product
from specgate.backends.eagle3.nouns.gemms import GemmShape

pytestmark = pytest.mark.gpu

HOT = {
    "gpt-oss draft": [("EAGLE3_FFN_GATE_UP", 34560, 2880), ("EAGLE3_FFN_DOWN", 2880, 17280), ("EAGLE3_FC", 2880, 8640)],
    "Llama-3.1-8B": [
        ("TARGET_QKV", 6144, 4096),
        ("TARGET_O", 4096, 4096),
        ("TARGET_FFN_GATE_UP", 28672, 4096),
        ("TARGET_FFN_DOWN", 4096, 14336),
        ("TARGET_LM_HEAD", 128256, 4096),
        ("EAGLE3_FC", 4096, 12288),
        ("EAGLE3_QKV", 6144, 8192),
        ("EAGLE3_LM_HEAD_SMALLVOC", 32000, 4096),
    ],
    "SmolLM2-135M": [
        ("TARGET_QKV", 960, 576),
        ("TARGET_O", 576, 576),
        ("TARGET_FFN_GATE_UP", 3072, 576),
        ("TARGET_FFN_DOWN", 576, 1536),
        ("TARGET_LM_HEAD", 49152, 576),
        ("EAGLE3_FC", 576, 1728),
        ("EAGLE3_LM_HEAD_SMALLVOC", 10240, 576),
    ],
}
PRODUCTS = [(pair, *product) for pair, products in HOT.items() for product in products]


@pytest.mark.parametrize(("pair", "tag", "n", "k"), PRODUCTS)
def test_a_hot_product_agrees_with_cublas_and_float64_and_its_rows_with_themselves(
    pair: str, tag: str, n: int, k: int
) -> None:
    tuned = Tuned.on(torch.cuda.get_device_name()).find(GemmShape(tag, n, k, MOST))
    product = Product.random(n, k, EPILOGUES[tag], copies=1)
    for config in {GemmConfig(), tuned or GemmConfig()}:
        assert product.fault(config) is None
        (whole,) = product.first_rows(config, MOST)
        # 3 x 34560 x 2880 and 5 x 34560 x 2880 (M x N x K) among them.
        for rows in (2, 3, 5, 6, 7):
            (out,) = product.first_rows(config, rows)
            assert torch.equal(out, whole[:rows])
            for oracle, tolerance in product.expected.values():
                assert relative_error(out, oracle[:rows]) < tolerance


@pytest.mark.parametrize("experts", [32, 128])
@pytest.mark.parametrize(
    ("tag", "n", "k"),
    [
        ("TARGET_EXPERT_GATE_UP", 5760, 2880),
        ("TARGET_EXPERT_DOWN", 2880, 2880),
        ("TARGET_EXPERT_GATE_UP", 2880, 2880),
        ("TARGET_EXPERT_DOWN", 2880, 1440),
    ],
)
def test_experts_of_gpt_oss_whole_and_in_halves_agree_with_float64_and_their_rows_with_themselves(
    tag: str, n: int, k: int, experts: int
) -> None:
    shape = GemmShape(tag, n, k, MOST, experts, 4)
    product = ExpertProduct.random(shape, copies=1)
    tuned = Tuned.on(torch.cuda.get_device_name()).find_experts(shape)
    usual = launcher(shape).config
    for config in {usual, tuned or usual, *candidates_of_experts(n, k)[::20]}:
        assert (config, product.fault(config)) == (config, None)


@pytest.mark.parametrize(("tag", "n", "k"), [("TARGET_O", 576, 576), ("EAGLE3_FFN_GATE_UP", 34560, 2880)])
def test_every_configuration_that_may_be_chosen_is_right(tag: str, n: int, k: int) -> None:
    product = Product.random(n, k, EPILOGUES[tag], copies=1)
    for config in (GemmConfig(), *candidates(n, k)):
        assert (config, product.fault(config)) == (config, None)
