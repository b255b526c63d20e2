"""Choice of the library for the attention of a prefill; it is the same for the same device and shape."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.engine import prefill_attention
from specgate.backends.eagle3.cupy.engine.prefill_attention import (
    Library,
    PrefillAttention,
    attend_last,
    libraries,
    said_of,
    split_heads,
)
from specgate.backends.eagle3.cupy.kernels.heads import Heads
from specgate.errors import BackendError
from tests.eagle3.cupy import oracles

HEADS = Heads(4, 2, 64, 70)
CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("capability", "cudnn", "order"),
    [
        ((9, 0), 91501, (Library.CUDNN, Library.FLASH, Library.TORCH)),
        ((10, 0), 92000, (Library.CUDNN, Library.FLASH, Library.TORCH)),
        ((9, 0), 91500, (Library.FLASH, Library.TORCH)),  # wrong for some lengths
        ((9, 0), None, (Library.FLASH, Library.TORCH)),
        ((8, 0), 92000, (Library.FLASH, Library.TORCH)),
        ((12, 0), 92000, (Library.FLASH, Library.TORCH)),
        (None, 92000, (Library.TORCH,)),
    ],
)
def test_the_order_depends_on_the_device_and_on_cudnn_alone(
    capability: tuple[int, int] | None, cudnn: int | None, order: tuple[Library, ...]
) -> None:
    assert libraries(capability, cudnn) == order


@pytest.mark.parametrize("library", list(Library))
def test_what_is_wanted_is_taken_alone(library: Library) -> None:
    assert libraries((9, 0), 91500, library) == libraries(None, None, library) == (library,)


def refusing(monkeypatch: pytest.MonkeyPatch, *refused: Library) -> list[Library]:
    """torch's attention on the CPU under the name of every library; those `refused` raise."""
    tried = list[Library]()
    own = prefill_attention.attend

    def attend(q: Tensor, k: Tensor, v: Tensor, library: Library) -> Tensor:
        tried.append(library)
        if library in refused:
            warnings.warn("cuDNN attention kernel not used because: (Triggered internally at a.cpp:1.)", stacklevel=1)
            warnings.warn("it does not support length 1. (Triggered internally at a.cpp:2.)", stacklevel=1)
            warnings.warn("Flash attention has been runtime disabled. (Triggered internally at a.cpp:3.)", stacklevel=1)
            raise RuntimeError("No available kernel. Aborting execution.\nand more")
        return own(q, k, v, Library.TORCH)

    monkeypatch.setattr(prefill_attention, "attend", attend)
    return tried


def test_the_first_library_that_runs_a_length_is_kept_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = refusing(monkeypatch, Library.CUDNN)
    attention = PrefillAttention((Library.CUDNN, Library.FLASH, Library.TORCH))
    for _ in range(2):
        assert attention.library(70, HEADS, CPU) is Library.FLASH
    assert tried == [Library.CUDNN, Library.FLASH]


def test_what_a_library_warns_of_is_not_said_where_another_one_can(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    refusing(monkeypatch, Library.CUDNN)
    assert PrefillAttention((Library.CUDNN, Library.FLASH)).library(70, HEADS, CPU) is Library.FLASH
    assert not recwarn.list


def test_a_length_is_chosen_for_whatever_lengths_came_before(monkeypatch: pytest.MonkeyPatch) -> None:
    refusing(monkeypatch, Library.CUDNN)
    order = (Library.CUDNN, Library.FLASH, Library.TORCH)
    one, other = PrefillAttention(order), PrefillAttention(order)
    result = [one.library(n, HEADS, CPU) for n in (1, 2, 70)]
    assert result == [other.library(n, HEADS, CPU) for n in (70, 2, 1)][::-1]


def test_where_the_wanted_library_cannot_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    refusing(monkeypatch, Library.CUDNN)
    message = (
        r"prompt of 70 tokens, 4 query and 2 key/value heads of 64: cudnn: No available kernel\. Aborting execution\.; "
        r"it does not support length 1\.\n"
    )
    with pytest.raises(BackendError, match=message):
        PrefillAttention((Library.CUDNN,)).library(70, HEADS, CPU)


def test_memory_that_is_exhausted_is_no_reason_to_take_another_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor, library: Library) -> Tensor:
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(prefill_attention, "attend", attend)
    with pytest.raises(torch.OutOfMemoryError):
        PrefillAttention((Library.CUDNN, Library.FLASH)).library(70, HEADS, CPU)


@torch.inference_mode()
def test_every_row_sees_itself_and_those_before_it_and_the_last_one_all() -> None:
    qkv = torch.randn(70, HEADS.qkv_width, generator=torch.Generator().manual_seed(0)).bfloat16()
    q, k, v = split_heads(qkv, HEADS)
    assert q.data_ptr() == qkv.data_ptr()  # views: nothing is copied
    out = PrefillAttention.on(CPU)(q, k, v)
    assert out.shape == (70, 4 * 64)
    for position in (0, 33, 69):
        want = oracles.attention(q[position], k.transpose(0, 1), v.transpose(0, 1), position, None).flatten()
        assert oracles.relative_error(out[position], want) < 6e-3
    assert oracles.relative_error(attend_last(q[-1:], k, v), out[-1:]) < 6e-3


def test_what_is_said_of_a_library_has_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91002)
    assert said_of(Library.CUDNN) == "cuDNN 9.10.2"
    assert torch.__version__ in said_of(Library.FLASH) != said_of(Library.TORCH)
