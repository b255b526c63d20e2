"""A prompt into a cache of codes: the kernels beside torch, on a CPU as C++ and on a GPU."""

from __future__ import annotations

import pytest
import torch

from specgate.backends.eagle3.cupy.engine import prefill
from specgate.backends.eagle3.cupy.engine.prefill import PrefillMode
from specgate.backends.eagle3.cupy.engine.prefill_attention import Library, PrefillAttention, split_heads
from specgate.backends.eagle3.cupy.kernels.heads import BLOCK, OUTER_BYTES, Heads
from specgate.backends.eagle3.cupy.kernels.prefill.launchers import PrefillHeads
from specgate.backends.eagle3.cupy.memory.buffers import Pages
from specgate.backends.eagle3.cupy.memory.coded_pages import block_scales
from specgate.backends.eagle3.lib.kv.modes import KvMode
from tests.eagle3.cupy.kernels.codes.caches import CODES, as_pages, plane
from tests.eagle3.cupy.kernels.device import normal

FUSED, PLAIN = (PrefillMode(fused, PrefillAttention((Library.TORCH,))) for fused in (True, False))


@pytest.mark.parametrize("kv", CODES)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(6, 1, 128), (9, 3, 64), (0, 2, 128)])
@pytest.mark.parametrize("positions", [1, 15, 17, BLOCK, 150])
def test_what_is_cached_and_what_the_prompt_attends_over_is_the_reference_engines(
    device: str, kv: KvMode, heads: int, kv_heads: int, head_dim: int, positions: int
) -> None:
    used = -(-positions // BLOCK)
    sizes, text = (Heads(heads, kv_heads, head_dim, length, kv) for length in (192, positions))
    qkv = normal(positions, sizes.qkv_width, device=device)
    qkv[:, : head_dim // 2] *= 100  # saturates what later positions have
    blocks = torch.tensor([2, 0, 3], device=device)[:used]
    table = tuple(normal(192, head_dim // 2, dtype=torch.float32, seed=s, device=device) for s in (0, 1))
    values = []
    for mode in (FUSED, PLAIN):
        own, pages = qkv.clone(), Pages.allocate(2, 4, sizes, device)
        assert pages.scales is not None
        for t in (pages.k, pages.v, pages.scales):
            t.fill_(7)
        prefill.cache_heads(own, (table[0], table[1]), pages, 1, blocks, sizes, mode)
        if kv == "nvfp4":  # outer scales are those of the first block alone, and what is behind them is nobody's
            pages.scales[1, blocks[1:], :, -OUTER_BYTES:] = 0
            pages.scales[1, blocks, :, 8 - OUTER_BYTES :] = 0
        values.append((own, pages.k, pages.v, pages.scales))
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(*values, strict=True))

    own, *pages_of = values[0]
    _, _, v = split_heads(qkv, sizes)
    _, turned, _ = prefill.rotated(qkv, (table[0], table[1]), slice(0, positions), sizes)
    at, planes = torch.arange(positions, device=device)[None], (plane(1, text, device), plane(1, text, device))
    for entry, rows in zip(planes, (turned, v), strict=True):
        entry.write(at, rows[None])
    wanted = as_pages(*planes)
    if kv == "nvfp4":
        wanted[2][0, 1:, :, -OUTER_BYTES:] = 0
    for mine, theirs in zip(pages_of, wanted, strict=True):
        assert torch.equal(mine[1, blocks], theirs[0])
    for i, entry in enumerate(planes):
        attended = split_heads(own, sizes)[1 + i].transpose(0, 1)
        assert torch.equal(attended, entry.read(0, used * BLOCK, torch.float32)[0, :, :positions].bfloat16())
    untouched = [b for b in range(4) if b not in blocks.tolist()]
    assert all(bool((t[0] == 7).all() and (t[1, untouched] == 7).all()) for t in pages_of)


@pytest.mark.parametrize("kv", CODES)
def test_what_is_not_finite_comes_to_light(device: str, kv: KvMode) -> None:
    """As one number in E4M3, and in NVFP4 as the 16 that share a scale with it."""
    sizes = Heads(1, 1, 64, 64, kv)
    table = (torch.ones(64, 32, device=device), torch.zeros(64, 32, device=device))
    for mode in (FUSED, PLAIN):
        qkv, pages = normal(20, 192, device=device), Pages.allocate(1, 1, sizes, device)
        qkv[16, 64 + 3], qkv[5, 128 + 7] = float("inf"), float("nan")
        prefill.cache_heads(qkv, table, pages, 0, torch.tensor([0], device=device), sizes, mode)
        wrong = (~qkv.isfinite()).nonzero().tolist()
        assert pages.scales is not None
        if kv == "fp8":
            assert wrong == [[5, 135], [16, 67], [16, 99]]  # infinity times a sine of zero is no number
            assert pages.k[0, 0, 0, 16, 3] == pages.v[0, 0, 0, 7, 5] == 0x7F
        else:
            keys, values = ([[row, n] for n in range(at, at + 16)] for row, at in ((16, 64), (5, 128)))
            assert wrong == values + keys + [[16, n] for n in range(96, 112)]
            scales = [of[0, 0, 0] == 0x7F for of in block_scales(pages.scales)]
            assert scales[0].nonzero().tolist() == [[16, 0], [16, 2]] and scales[1].nonzero().tolist() == [[5, 0]]


@pytest.mark.parametrize("first", [0.0, 1e-40, float("inf"), float("nan")])
def test_a_first_position_without_a_scale_of_its_own_gets_the_scale_one(device: str, first: float) -> None:
    sizes = Heads(0, 1, 64, 64, "nvfp4")
    table = (torch.ones(64, 32, device=device), torch.zeros(64, 32, device=device))
    for mode in (FUSED, PLAIN):
        qkv, pages = normal(20, 128, device=device), Pages.allocate(1, 1, sizes, device)
        assert pages.scales is not None
        pages.scales.fill_(9)
        qkv[0] = first
        prefill.cache_heads(qkv, table, pages, 0, torch.tensor([0], device=device), sizes, mode)
        outer = pages.scales[0, 0, 0, -OUTER_BYTES : 8 - OUTER_BYTES].contiguous().view(torch.float32)
        assert outer.tolist() == [1.0, 1.0]


def test_pages_of_another_format_are_refused_by_name() -> None:
    qkv, table = torch.empty(70, 5 * 64, dtype=torch.bfloat16), (torch.empty(70, 32), torch.empty(70, 32))
    plain, fp8, nvfp4 = (Pages.allocate(1, 2, Heads(3, 1, 64, 128, kv), "cpu") for kv in ("bf16", *CODES))
    for kv, pages in zip(CODES, (fp8, nvfp4), strict=True):
        with pytest.raises(ValueError, match=r"prefill_.*: scales is missing"):
            PrefillHeads(3, 1, 64, kv=kv)(qkv, pages.k[0], pages.v[0], torch.arange(2), table)
        with pytest.raises(ValueError, match=r"k_pages: torch.bfloat16.*a contiguous torch.uint8"):
            PrefillHeads(3, 1, 64, kv=kv)(qkv, plain.k[0], plain.v[0], torch.arange(2), table, pages.scales_of(0))
        with pytest.raises(ValueError, match="prefill_heads: scales is given, and is no operand of this launcher"):
            PrefillHeads(3, 1, 64)(qkv, plain.k[0], plain.v[0], torch.arange(2), table, pages.scales_of(0))
    with pytest.raises(ValueError, match=r"scales: torch.uint8.*a contiguous torch.float32"):
        PrefillHeads(3, 1, 64, kv="fp8")(qkv, fp8.k[0], fp8.v[0], torch.arange(2), table, nvfp4.scales_of(0))
