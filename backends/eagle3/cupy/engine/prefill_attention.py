"""The attention of a prefill: which of torch's libraries computes it, and its forms.

A library is chosen for a device, the sizes of the heads and a prompt's length, and for nothing else. So the bits of a
prompt's cache do not depend on what else is prefilled.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from specgate.backends.eagle3.cupy.engine import prefill_sinks
from specgate.backends.eagle3.cupy.kernels.heads import Heads
from specgate.errors import BackendError


class Library(StrEnum):
    """Library that computes the attention of a prefill. `torch`: whatever torch takes by itself."""

    CUDNN = "cudnn"
    FLASH = "flash"
    TORCH = "torch"


BACKENDS: Final[Mapping[Library, SDPBackend]] = {
    Library.CUDNN: SDPBackend.CUDNN_ATTENTION,
    Library.FLASH: SDPBackend.FLASH_ATTENTION,
}
OWN_KERNELS: Final = (9, 10)
"""Major compute capabilities whose tensor cores read shared memory by themselves (wgmma, tcgen05). For these, cuDNN has
attention of their own, and torch's FlashAttention that of compute capability 8.
"""
FIRST_RIGHT: Final = 91501
"""The first version of cuDNN, as it counts them (9.15.1), that is right for every length of prompt. In those before,
lengths that are no multiple of 128 may be wrong (pytorch/pytorch#169849), for which torch does not prefer them either.
"""
ONE_ROW: Final = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""What may compute a single row. cuDNN may not: it would make another plan for every length, within the clock."""
TRIAL: Final = 129
"""Positions of the prompt by which an engine says which library it will use."""


def libraries(
    capability: tuple[int, int] | None, cudnn: int | None, only: Library | None = None
) -> tuple[Library, ...]:
    """The libraries for a GPU of that compute capability (None: no GPU), the best first; `only` that one, if given.

    `cudnn`: its version as it counts them, such as 91501; None without it.
    """
    if only is not None:
        return (only,)
    if capability is None:
        return (Library.TORCH,)
    cudnn_fits = capability[0] in OWN_KERNELS and cudnn is not None and cudnn >= FIRST_RIGHT
    return (*([Library.CUDNN] if cudnn_fits else []), Library.FLASH, Library.TORCH)


def cudnn_version() -> int | None:
    """Return the version of the cuDNN that torch uses; None without one."""
    cudnn: Any = torch.backends.cudnn  # torch gives no types
    version: int | None = cudnn.version()
    return version


class PrefillAttention:
    """The attention of prompts on one device. The first of `order` that computes a length of prompt is kept for it."""

    def __init__(self, order: tuple[Library, ...]) -> None:
        self.order = order
        self.chosen: dict[tuple[int, ...], Library] = {}

    @classmethod
    def on(cls, device: torch.device, only: Library | None = None) -> PrefillAttention:
        capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
        return cls(libraries(capability, cudnn_version(), only))

    def library(self, positions: int, heads: Heads, device: torch.device) -> Library:
        """The library for prompts of `positions` tokens. A first call for a length runs it, and so makes its plan.

        Raises BackendError where none of the order computes it.
        """
        key = (positions, heads.heads, heads.kv_heads, heads.head_dim)
        if key not in self.chosen:
            self.chosen[key] = self._first_that_runs(attend, positions, heads, device)
        return self.chosen[key]

    def library_with_sinks(self, positions: int, heads: Heads, window: int | None, device: torch.device) -> Library:
        """As `library`, of a layer with sinks, and a window or None. One that has room for the whole prompt is none."""
        reach = window if window is not None and window < positions else None
        key = (positions, heads.heads, heads.kv_heads, heads.head_dim, reach or 0)
        if key not in self.chosen:

            def attended(q: Tensor, k: Tensor, v: Tensor, library: Library) -> Tensor:
                return attend_with_sinks(q, k, v, q.new_zeros(heads.heads), reach, library)

            self.chosen[key] = self._first_that_runs(attended, positions, heads, device)
        return self.chosen[key]

    def _first_that_runs(
        self,
        attended: Callable[[Tensor, Tensor, Tensor, Library], Tensor],
        positions: int,
        heads: Heads,
        device: torch.device,
    ) -> Library:
        if self.order == (Library.TORCH,) and device.type != "cuda":
            return Library.TORCH
        qkv = torch.zeros(positions, heads.qkv_width, dtype=torch.bfloat16, device=device)
        failed: list[str] = []
        for library in self.order:
            # Why a library cannot is told in warnings, which are nobody's concern where another one can.
            with warnings.catch_warnings(record=True, action="always") as messages:
                try:
                    attended(*split_heads(qkv, heads), library)
                except torch.OutOfMemoryError:
                    raise
                except RuntimeError as error:
                    failed.append(f"{library}: {'; '.join(reasons(error, messages))}")
                else:
                    return library
        raise BackendError(
            f"attention of a prompt of {positions} tokens, {heads.heads} query and {heads.kv_heads} key/value heads of "
            f"{heads.head_dim}: {'; '.join(failed)}",
            hint="-o prefill_attention=torch",
        )

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [P, N, D] over k, v [P, G, D]: each position sees itself and those before it. Returns [P, N·D]."""
        heads = Heads(q.shape[1], k.shape[1], q.shape[2], len(q))
        return attend(q, k, v, self.library(len(q), heads, q.device))

    def with_sinks(self, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, window: int | None) -> Tensor:
        """As a call, where each position sees `window` positions at most, itself included, and the logit `sinks` [N]
        of a head takes a share of its softmax and has no value.
        """
        positions, heads, head_dim = q.shape
        of = Heads(heads, k.shape[1], head_dim, positions)
        library = self.library_with_sinks(positions, of, window, q.device)
        return attend_with_sinks(q, k, v, sinks, window if window is not None and window < positions else None, library)


def reasons(error: RuntimeError, messages: Sequence[warnings.WarningMessage]) -> Iterator[str]:
    """Return torch's reasons why a library cannot, without those about others."""
    yield (str(error).strip().splitlines() or [""])[0]
    for warning in messages:
        text = str(warning.message).partition(" (Triggered internally")[0].strip()
        if not text.endswith("because:") and "runtime disabled" not in text:
            yield text


def attend(q: Tensor, k: Tensor, v: Tensor, library: Library) -> Tensor:
    """Causal attention by `library`; shapes as in `PrefillAttention`. Raises RuntimeError where it cannot."""
    chosen = sdpa_kernel(BACKENDS[library]) if library in BACKENDS else contextlib.nullcontext()
    with chosen:
        return flat(F.scaled_dot_product_attention(batched(q), batched(k), batched(v), is_causal=True, enable_gqa=True))


def attend_with_sinks(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, window: int | None, library: Library) -> Tensor:
    """Compute `PrefillAttention.with_sinks` by `library`. Raises RuntimeError where it cannot."""
    if library is Library.TORCH:
        return prefill_sinks.by_torch(q, k, v, sinks, window)
    if library is Library.CUDNN and window is not None:
        raise RuntimeError("torch gives cuDNN no windows")
    attended = prefill_sinks.by_cudnn(q, k, v) if library is Library.CUDNN else prefill_sinks.by_flash(q, k, v, window)
    return prefill_sinks.beside_sinks(*attended, sinks)


def attend_last(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """One query row [1, N, D] that sees all of k, v [P, G, D]. Returns [1, N·D]."""
    with sdpa_kernel(ONE_ROW):
        return flat(F.scaled_dot_product_attention(batched(q), batched(k), batched(v), enable_gqa=True))


def batched(t: Tensor) -> Tensor:
    """[P, heads, D] as torch wants it: [1, heads, P, D]."""
    return t.transpose(0, 1).unsqueeze(0)


def flat(out: Tensor) -> Tensor:
    """[1, N, P, D] as the next product wants it: [P, N·D]."""
    return out[0].transpose(0, 1).flatten(1)


def split_heads(qkv: Tensor, heads: Heads) -> tuple[Tensor, Tensor, Tensor]:
    """Views q [P, N, D], k and v [P, G, D] of a packed projection [P, (N + 2G)·D]."""
    n, g = heads.heads, heads.kv_heads
    q, k, v = qkv.view(qkv.shape[0], n + 2 * g, heads.head_dim).split_with_sizes([n, g, g], dim=1)
    return q, k, v


def said_of(library: Library) -> str:
    """The library with its version, for the facts of an engine."""
    if library is Library.CUDNN:
        version = cudnn_version() or 0
        return f"cuDNN {version // 10000}.{version // 100 % 100}.{version % 100}"
    return f"FlashAttention of torch {torch.__version__}" if library is Library.FLASH else f"torch {torch.__version__}"
