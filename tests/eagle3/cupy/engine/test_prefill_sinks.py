"""Attention with sinks and windows against the oracle: by torch, by what libraries tell of their sums, and on a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.engine import prefill_attention, prefill_sinks
from specgate.backends.eagle3.cupy.engine.prefill_attention import (
    Library,
    PrefillAttention,
    attend_with_sinks,
    split_heads,
)
from specgate.backends.eagle3.cupy.kernels.heads import Heads
from tests.eagle3.cupy import oracles
from tests.eagle3.cupy.kernels.device import normal

ROUNDING = 0.02
HEADS = [(8, 1, 64), (6, 2, 64), (4, 4, 128)]


def operands(length: int, heads: int, kv_heads: int, head_dim: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, k, v, and sinks that take a good part of the softmax."""
    generator = torch.Generator().manual_seed(heads)
    q, k, v = (torch.randn(length, n, head_dim, generator=generator).bfloat16() for n in (heads, kv_heads, kv_heads))
    return q, k, v, (3 * torch.randn(heads, generator=generator)).bfloat16()


def wanted(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, window: int | None, rows: list[int]) -> Tensor:
    keys, values = k.transpose(0, 1), v.transpose(0, 1)
    return torch.stack([oracles.attention(q[p], keys, values, p, window, sinks).flatten() for p in rows])


def errors(tensor: Tensor, expected: Tensor) -> Tensor:
    each: Tensor = (tensor.double() - expected).norm(dim=-1) / expected.norm(dim=-1)
    return each


@pytest.mark.parametrize("window", [None, 1, 8, 50, 51])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), HEADS)
def test_every_position_sees_its_window_and_the_sink(
    window: int | None, heads: int, kv_heads: int, head_dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefill_sinks, "WINDOWS", 3)
    q, k, v, sinks = operands(51, heads, kv_heads, head_dim)
    attended = PrefillAttention((Library.TORCH,)).with_sinks(q, k, v, sinks, window)
    every = list(range(51))
    assert errors(attended, wanted(q, k, v, sinks, window, every)).max() < ROUNDING
    assert errors(attended, wanted(q, k, v, None, window, every)).max() > 10 * ROUNDING


def test_what_a_library_gives_without_sinks_and_its_sums_give_it_with_them() -> None:
    """By torch's FlashAttention for CPUs, which tells them as the one for GPUs does."""
    q, k, v, sinks = operands(51, 6, 2, 64)
    op: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    query, keys, values = (t.transpose(0, 1)[None] for t in (q, *(t.repeat_interleave(3, dim=1) for t in (k, v))))
    out, sums = op(query, keys, values, 0.0, True)
    attended = prefill_sinks.beside_sinks(out[0].transpose(0, 1), sums[0], sinks)
    assert errors(attended, wanted(q, k, v, sinks, None, list(range(51)))).max() < ROUNDING


@pytest.mark.parametrize("window", [None, 8])
def test_libraries_for_gpus_are_called_as_torch_declares_them(window: int | None) -> None:
    """On the `meta` device: the shapes of what they return, and heads that need no copy for the next product."""
    q, k, v = split_heads(torch.empty(51, 10 * 64, dtype=torch.bfloat16, device="meta"), Heads(6, 2, 64, 51))
    calls = [prefill_sinks.by_flash(q, k, v, window), *([prefill_sinks.by_cudnn(q, k, v)] if window is None else [])]
    for out, sums in calls:
        assert (out.shape, sums.shape, sums.dtype) == ((51, 6, 64), (6, 51), torch.float32)
        mixed = prefill_sinks.beside_sinks(out, sums, torch.empty(6, dtype=torch.bfloat16, device="meta"))
        assert mixed.shape == (51, 6 * 64) and mixed._base is not None


@pytest.mark.parametrize("window", [None, 1, 8, 51, 60])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), HEADS)
def test_the_last_row_alone_is_the_oracles(window: int | None, heads: int, kv_heads: int, head_dim: int) -> None:
    q, k, v, sinks = operands(51, heads, kv_heads, head_dim)
    row = prefill_sinks.last_row(q[-1:], k, v, sinks, window)
    assert row.shape == (1, heads * head_dim) and row.dtype == torch.bfloat16
    assert errors(row, wanted(q, k, v, sinks, window, [50])).max() < 4e-3


def test_layers_with_and_without_a_window_may_have_different_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch gives cuDNN no windows; a window that the prompt fits in is none."""

    def attend(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, window: int | None, library: Library) -> Tensor:
        if library is Library.CUDNN:
            return attend_with_sinks(q, k, v, sinks, window, library if window else Library.TORCH)
        return attend_with_sinks(q, k, v, sinks, window, Library.TORCH)

    monkeypatch.setattr(prefill_attention, "attend_with_sinks", attend)
    attention = PrefillAttention((Library.CUDNN, Library.FLASH, Library.TORCH))
    sizes, cpu = Heads(8, 1, 64, 51), torch.device("cpu")
    chosen = [attention.library_with_sinks(51, sizes, window, cpu) for window in (None, 50, 51)]
    assert chosen == [Library.CUDNN, Library.FLASH, Library.CUDNN]


# ── on a GPU ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.gpu
@pytest.mark.parametrize("library", list(Library))
@pytest.mark.parametrize("window", [None, 1, 32, 128])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(64, 8, 64), (4, 4, 128)])
@pytest.mark.parametrize("positions", [1, 129, 1000])
@torch.inference_mode()
def test_every_library_has_sinks_and_windows(
    library: Library, window: int | None, heads: int, kv_heads: int, head_dim: int, positions: int
) -> None:
    sizes = Heads(heads, kv_heads, head_dim, positions)
    q, k, v = split_heads(normal(positions, sizes.qkv_width), sizes)
    sinks, seen = normal(heads, seed=1), window if window is not None and window < positions else None
    if library not in PrefillAttention.on(q.device).order:
        pytest.skip(f"{library} is not right, or not fast, on this GPU: prefills do not use it")
    if library is Library.CUDNN and seen is not None:
        pytest.skip("torch gives cuDNN no windows: prefills do not ask it for one")
    attended = attend_with_sinks(q, k, v, sinks, seen, library)
    rows = sorted({0, positions // 2, positions - 1})
    assert errors(attended[rows], wanted(q, k, v, sinks, window, rows)).max() < ROUNDING
    assert torch.equal(attended, attend_with_sinks(q, k, v, sinks, seen, library))
