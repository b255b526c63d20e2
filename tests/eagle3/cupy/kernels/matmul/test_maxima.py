"""Products that leave the largest of every eight results, which trees find their tokens by."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.matmul.gemm_config import GemmConfig
from specgate.backends.eagle3.cupy.kernels.matmul.many_config import ManyConfig
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import Epilogue, MatmulRows, maxima_of
from tests.eagle3.cupy.kernels.device import normal, poisoned, rows_of
from tests.eagle3.cupy.kernels.sampling.drawing import ordered_bits

UNTOUCHED = 77


def maxima_beside(logits: Tensor, behind: int = 0) -> Tensor:
    """What the LM head leaves beside `logits`; `behind`: the words that it leaves as they are."""
    rows, columns = logits.shape
    values = logits.cpu().numpy()
    bits = np.where(np.isfinite(values), ordered_bits(values), np.uint64(0xFFFFFFFF))
    parts = np.pad(bits, ((0, 0), (0, -columns % 8))).reshape(rows, -1, 8).max(axis=2).astype(np.uint32)
    words = np.full((rows, maxima_of(columns)), behind, np.uint32)
    words[:, : parts.shape[1]] = parts
    return torch.from_numpy(words.view(np.int32)).to(logits.device)


def both(
    x: Tensor, weight: Tensor, rows: int, active: int, config: GemmConfig, many: ManyConfig | None, device: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Results without maxima, results with them, and the maxima, of `active` of `rows` slots."""
    n, k = weight.shape
    of = rows_of(range(active), 1, rows, device=device)
    plain, out = (poisoned(rows, n, dtype=torch.float32, device=device) for _ in range(2))
    maxima = torch.full((rows, maxima_of(n)), UNTOUCHED, dtype=torch.int32, device=device)
    MatmulRows(n, k, Epilogue.PLAIN, rows, config, many=many)(plain, x[:rows], weight, of)
    kernel = MatmulRows(n, k, Epilogue.PLAIN, rows, config, maxima=True, many=many)
    assert kernel.spec.stem == ("maxima_many" if kernel.many else "maxima_rows")
    kernel(out, x[:rows], weight, of, maxima=maxima)
    return plain, out, maxima


@pytest.mark.parametrize(("n", "k"), [(96, 64), (1001, 96)])
@pytest.mark.parametrize(
    ("rows", "active", "config", "many"),
    [
        (1, 1, GemmConfig(4, 1, 2, 1), None),
        (5, 4, GemmConfig(4, 1, 2, 2, 2), None),
        (70, 67, GemmConfig(4, 1, 2, 1), None),
        (20, 19, GemmConfig(2, 1), ManyConfig(3, 1, 1, 3, 1)),
        (70, 66, GemmConfig(2, 1), ManyConfig(5, 2, 1, 3, 2)),
    ],
    ids=["a row", "passes", "groups", "many", "many in groups"],
)
def test_the_largest_of_every_eight_results_is_left_beside_the_same_bits(
    device: str, n: int, k: int, rows: int, active: int, config: GemmConfig, many: ManyConfig | None
) -> None:
    x, weight = normal(rows, k, device=device), normal(n, k, seed=1, device=device)
    weight[3], weight[n - 1], x[0] = 0, float("inf"), x[0].abs()
    plain, out, maxima = both(x, weight, rows, active, config, many, device)
    assert torch.equal(out.view(torch.int32), plain.view(torch.int32)) and out[active:].isnan().all()
    assert torch.equal(maxima[:active], maxima_beside(out[:active], UNTOUCHED))
    assert (maxima[active:] == UNTOUCHED).all()


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [4, 16, 20, 52, 100])
@pytest.mark.parametrize(
    ("n", "k", "config"), [(32000, 4096, GemmConfig(16, 2)), (49151, 576, GemmConfig(8, 2, 3, 1, 16, 1))]
)
def test_it_is_left_beside_the_same_bits_as_the_work_of_an_lm_head_is_divided(
    n: int, k: int, config: GemmConfig, rows: int
) -> None:
    x, weight = (torch.randn(size, k, device="cuda").bfloat16() for size in (rows, n))
    plain, out, maxima = both(x, weight, rows, rows, config.at(rows), None, "cuda")
    assert torch.equal(out, plain) and torch.equal(maxima, maxima_beside(out, UNTOUCHED))


def test_only_a_plain_product_that_makes_no_choice_leaves_maxima() -> None:
    for epilogue in (Epilogue.RESIDUAL, Epilogue.SWIGLU):
        with pytest.raises(ValueError, match=f"{epilogue.name} with maxima: only PLAIN has that"):
            MatmulRows(64, 64, epilogue, 1, maxima=True)
    with pytest.raises(ValueError, match="only a product that chooses nothing leaves maxima"):
        MatmulRows(64, 64, Epilogue.PLAIN, 1, chooses=True, maxima=True)
    rows, weight = rows_of((0,), 1, device="cpu"), normal(64, 64, device="cpu")
    for made, given in ((False, torch.zeros(1, 8, dtype=torch.int32)), (True, None)):
        kernel = MatmulRows(64, 64, Epilogue.PLAIN, 1, maxima=made)
        with pytest.raises(ValueError, match=f"made for maxima = {made}"):
            kernel(torch.zeros(1, 64), weight[:1], weight, rows, maxima=given)
