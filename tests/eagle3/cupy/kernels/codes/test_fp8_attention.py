"""Parts of attention that only a cache in E4M3 has: on a CPU as C++, and on a GPU."""

from __future__ import annotations

import pytest
import torch

from specgate.backends.eagle3.cupy.kernels.heads import BLOCK, Heads
from tests.eagle3.cupy.kernels.codes.caches import POSITIONS, Cache
from tests.eagle3.cupy.kernels.codes.test_attention import ROUNDED
from tests.eagle3.cupy.kernels.device import relative_error


def test_values_of_very_different_sizes_keep_their_precision(device: str) -> None:
    """From 2^-40 to 2^40, and beside them some that are zero, whose scale is one."""
    cache = Cache(Heads(4, 2, 64, POSITIONS, "fp8"), 2, device, spread=2.0**40)
    zeros = torch.zeros(2, BLOCK, 2, 64, device=device)
    at = torch.arange(BLOCK, 2 * BLOCK, device=device).expand(2, -1)
    cache.values.write(at, zeros)
    block = cache.block_table[:, 1].long()
    cache.v_pages[block] = 0
    cache.scales[block, ..., 1] = 1.0
    assert cache.holds_what_it_should()
    for positions in ([70, 100], [20, 50], [300, 200]):
        qkv = cache.qkv(2, scale=1.0)
        qkv[:, -2 * 64 :] *= 2.0**-30 if max(positions) < 200 else 1.0
        got = cache.attend(qkv, positions, 1)
        want = cache.oracle(cache.append(qkv, positions, 1), positions)
        assert relative_error(got, want) < ROUNDED + 2e-3


@pytest.mark.parametrize("scale", [0.0, float("inf"), float("nan"), -1.0])
@pytest.mark.parametrize("kind", [0, 1], ids=["keys", "values"])
def test_a_scale_that_nothing_of_ours_has_written_comes_to_light(device: str, scale: float, kind: int) -> None:
    cache = Cache(Heads(1, 1, 64, POSITIONS, "fp8"), 2, device)
    cache.scales[cache.block_table[1, 1].long(), 0, 2, kind] = scale
    got = cache.attend(cache.qkv(2), [200, 200], 1)
    assert got[0].isfinite().all() and got[1].isnan().all()
