"""A prompt into a cache in E4M3: the kernel beside torch, on a CPU as C++ and on a GPU."""

from __future__ import annotations

import pytest
import torch

from specgate.backends.cupy_eagle3.engine import prefill
from specgate.backends.cupy_eagle3.engine.prefill import Way
from specgate.backends.cupy_eagle3.engine.prefill_attention import Library, PrefillAttention, split_heads
from specgate.backends.cupy_eagle3.kernels.heads import BLOCK, SCALE_POSITIONS, Heads
from specgate.backends.cupy_eagle3.kernels.prefill.prefill_heads import PrefillHeads
from specgate.backends.cupy_eagle3.memory.buffers import Pages
from specgate.backends.reference.kv.planes import Fp8Plane
from tests.backends.cupy_eagle3.kernels.device import normal

FUSED, PLAIN = (Way(fused, PrefillAttention((Library.TORCH,))) for fused in (True, False))


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(6, 1, 128), (9, 3, 64), (0, 2, 128)])
@pytest.mark.parametrize("positions", [1, 15, 17, BLOCK, 150])
def test_what_is_cached_and_what_the_prompt_attends_over_is_the_reference_engines(
    device: str, heads: int, kv_heads: int, head_dim: int, positions: int
) -> None:
    sizes, used = Heads(heads, kv_heads, head_dim, 192, fp8=True), -(-positions // BLOCK)
    qkv = normal(positions, sizes.qkv_width, device=device)
    qkv[:, : head_dim // 2] *= 100  # saturates what later positions have
    blocks = torch.tensor([2, 0, 3], device=device)[:used]
    table = tuple(normal(192, head_dim // 2, dtype=torch.float32, seed=s, device=device) for s in (0, 1))
    found = []
    for way in (FUSED, PLAIN):
        own, pages = qkv.clone(), Pages.allocate(2, 4, sizes, device)
        assert pages.scales is not None
        for t in (pages.k, pages.v, pages.scales):
            t.fill_(7)
        prefill.cache_heads(own, (table[0], table[1]), pages, 1, blocks, sizes, way, 64)
        found.append((own, pages.k, pages.v, pages.scales))
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(*found, strict=True))

    own, k_pages, v_pages, scales = found[0]
    _, _, v = split_heads(qkv, sizes)
    _, turned, _ = prefill.rotated(qkv, (table[0], table[1]), slice(0, positions), sizes)
    for i, (rows, pages_of) in enumerate(((turned, k_pages[1]), (v, v_pages[1].transpose(-1, -2)))):
        codes = torch.zeros(1, kv_heads, used * BLOCK, head_dim, dtype=torch.uint8, device=device)
        plane = Fp8Plane("", codes, torch.ones(1, kv_heads, used * BLOCK // SCALE_POSITIONS, device=device))
        plane.write(torch.arange(positions, device=device)[None], rows[None])
        held = pages_of[blocks].transpose(0, 1).flatten(1, 2)
        assert torch.equal(held, plane.codes[0])
        assert torch.equal(scales[1, blocks, :, :, i].transpose(0, 1).flatten(1), plane.scales[0])
        attended = split_heads(own, sizes)[1 + i].transpose(0, 1)
        assert torch.equal(attended, plane.read(0, used * BLOCK, torch.float32)[0, :, :positions].bfloat16())
    untouched = [b for b in range(4) if b not in blocks.tolist()]
    assert all(bool((t[0] == 7).all() and (t[1, untouched] == 7).all()) for t in (k_pages, v_pages, scales))


def test_what_is_not_finite_comes_to_light(device: str) -> None:
    sizes = Heads(1, 1, 64, 64, fp8=True)
    table = (torch.ones(64, 32, device=device), torch.zeros(64, 32, device=device))
    for way in (FUSED, PLAIN):
        qkv, pages = normal(20, 192, device=device), Pages.allocate(1, 1, sizes, device)
        qkv[16, 64 + 3], qkv[5, 128 + 7] = float("inf"), float("nan")
        prefill.cache_heads(qkv, table, pages, 0, torch.tensor([0], device=device), sizes, way, 64)
        wrong = (~qkv.isfinite()).nonzero().tolist()
        assert wrong == [[5, 135], [16, 67], [16, 99]]  # infinity times a sine of zero is no number
        assert pages.k[0, 0, 0, 16, 3] == pages.v[0, 0, 0, 7, 5] == 0x7F


def test_pages_of_another_format_are_refused_by_name() -> None:
    sizes = Heads(3, 1, 64, 128)
    qkv, table = torch.empty(70, 5 * 64, dtype=torch.bfloat16), (torch.empty(70, 32), torch.empty(70, 32))
    plain, fp8 = (Pages.allocate(1, 2, Heads(3, 1, 64, 128, fp8=narrow), "cpu") for narrow in (False, True))
    with pytest.raises(ValueError, match="made for scales: True"):
        PrefillHeads(3, 1, 64, fp8=True)(qkv, fp8.k[0], fp8.v[0], torch.arange(2), table)
    with pytest.raises(ValueError, match=r"k_pages: torch.bfloat16.*a contiguous torch.uint8"):
        PrefillHeads(3, 1, 64, fp8=True)(qkv, plain.k[0], plain.v[0], torch.arange(2), table, fp8.scales_of(0))
    with pytest.raises(ValueError, match="made for scales: False"):
        PrefillHeads(3, 1, 64)(qkv, plain.k[0], plain.v[0], torch.arange(2), table, fp8.scales_of(0))
    assert sizes.qkv_width == 5 * 64
