"""Masks for slots at different positions, by the model's own rules.

A model of transformers states for each kind of its layers who may see whom, as a function of positions: causal, with a
window, within a chunk (`mask_function`). transformers evaluates it at positions that all slots share. Here it is
evaluated at each slot's own, for passes within `rows_at`; other passes get what transformers makes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionMaskInterface
from transformers.masking_utils import eager_mask, sdpa_mask

from specgate.errors import BackendError

Visible = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(slot, head, query position, key position) → bool, for arguments that broadcast."""
_POSITIONS: ContextVar[Tensor | None] = ContextVar("positions", default=None)


@contextmanager
def rows_at(positions: Tensor) -> Iterator[None]:
    """Within it, rows of the model stand at `positions` [B, T]."""
    token = _POSITIONS.set(positions)
    try:
        yield
    finally:
        _POSITIONS.reset(token)


def visible(positions: Tensor, mask_function: Visible, kv_length: int, kv_offset: int) -> Tensor:
    """bool [B, 1, T, kv_length]: what rows at `positions` [B, T] see of the keys at kv_offset, kv_offset + 1, …"""
    batch, rows = positions.shape
    slots = torch.arange(batch, device=positions.device)[:, None, None, None]
    keys = torch.arange(kv_offset, kv_offset + kv_length, device=positions.device)[None, None, None]
    mask = mask_function(slots, torch.zeros_like(slots[:1]), positions[:, None, :, None], keys)
    return mask.expand(batch, 1, rows, kv_length)


def needs_no_mask(positions: Tensor, kv_length: int, kv_offset: int, local_size: int | None) -> bool:
    """True if plain causal attention is right, for which a GPU has its fastest kernels.

    That needs one slot whose single row sees all keys, or whose rows are all keys. `RaggedLayer.span` ends with the
    rows there. A layer that sees `local_size` positions must have no more keys.
    """
    batch, rows = positions.shape
    fits = local_size is None or (kv_offset == 0 and kv_length <= local_size)
    return batch == 1 and fits and (rows == 1 or (kv_offset == 0 and kv_length == rows))


def ragged(original: Callable[..., Tensor | None], *, additive: bool) -> Callable[..., Tensor | None]:
    """`original` mask function of transformers, which within `rows_at` heeds the positions.

    `additive`: it returns 0 and the lowest number of the dtype in the place of true and false.
    """

    @wraps(original)
    def mask(*args: Any, **kwargs: Any) -> Tensor | None:
        positions = _POSITIONS.get()
        if positions is None:
            return original(*args, **kwargs)
        if kwargs.get("use_vmap"):
            raise BackendError("the model has masks that depend on more than positions: they are not supported")
        kv_length, kv_offset = kwargs["kv_length"], kwargs.get("kv_offset", 0)
        may_skip = not additive and kwargs.get("allow_is_causal_skip", True)
        if may_skip and needs_no_mask(positions, kv_length, kv_offset, kwargs.get("local_size")):
            return None
        allowed = visible(positions, kwargs["mask_function"], kv_length, kv_offset)
        if not additive:
            return allowed
        dtype = kwargs["dtype"]
        return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill(
            ~allowed, torch.finfo(dtype).min
        )

    return mask


AttentionMaskInterface.register("sdpa", ragged(sdpa_mask, additive=False))
AttentionMaskInterface.register("eager", ragged(eager_mask, additive=True))
