"""A cache of transformers whose slots stand at different positions, and masks for them by the model's own rules.

A model of transformers states for each kind of its layers who may see whom, as a function of positions: causal, with a
window, within a chunk (`mask_function`). transformers evaluates it at positions that all slots share. Here it is
evaluated at each slot's own, for passes within `rows_at`; other passes get what transformers makes.

`DynamicCache` appends to all slots alike, and copies itself to do so. Here every row is written at its own position of
preallocated memory. To rewind a slot is to use a lower position: what lies behind it is never looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from typing import Any, Final

import torch
import transformers
from torch import Tensor
from transformers import AttentionMaskInterface
from transformers.cache_utils import CacheLayerMixin, DynamicLayer, DynamicSlidingWindowLayer
from transformers.masking_utils import eager_mask, sdpa_mask

from specgate.backends.eagle3.reference.cache import whole_blocks
from specgate.errors import BackendError, CheckpointError

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


ATTENTION: Final = (DynamicLayer, DynamicSlidingWindowLayer)
"""What transformers caches for layers of full attention, and for sliding windows and chunks. Other layers carry a state
that cannot be rewound.
"""


@dataclass(slots=True)
class Pass:
    """Rows of one pass of the model. `low`: the first position of any slot. `stop`: behind the last one."""

    slots: slice
    positions: Tensor
    low: int
    stop: int

    @property
    def alone(self) -> bool:
        """True if its keys end with its rows, so that one row, or a prompt from its beginning, needs no mask."""
        return len(self.positions) == 1 and (self.positions.shape[1] == 1 or self.low == 0)


class RaggedLayer(CacheLayerMixin):  # type: ignore[misc]  # transformers ships no types
    """Keys and values of one layer, [slots, G, positions, D], allocated when the layer first has any.

    `window`: how many positions back the layer looks at most, itself included; None for all.
    """

    def __init__(self, cache: RaggedCache, window: int | None) -> None:
        super().__init__()
        self.cache, self.window, self.is_sliding = cache, window, window is not None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        def plane(states: Tensor) -> Tensor:
            return states.new_zeros(self.cache.max_batch, states.shape[1], self.cache.max_positions, states.shape[3])

        self.keys, self.values, self.is_initialized = plane(key_states), plane(value_states), True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write `key_states` and `value_states` [B, G, T, D] at the pass's positions.

        Returns what its rows may look at [B, G, S, D], where S begins at `span`.
        """
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        run, (start, stop) = self.cache.run, self.span()
        slot = torch.arange(len(run.positions), device=run.positions.device)[:, None]
        rows = []
        for plane, states in ((self.keys, key_states), (self.values, value_states)):
            mine = plane[run.slots]
            mine[slot, :, run.positions] = states.transpose(1, 2)
            rows.append(mine[:, :, start:stop])
        return rows[0], rows[1]

    def span(self) -> tuple[int, int]:
        """(first, behind the last) of the cached positions that the rows of the pass look at, up to masks.

        Whole blocks, so that few sizes of buffers come up, except where a pass needs no mask if they end with its rows.
        """
        run = self.cache.run
        start = 0 if self.window is None else max(0, run.low - self.window + 1)
        return start, run.stop if run.alone else whole_blocks(run.stop)

    def get_mask_sizes(self, *_: Any) -> tuple[int, int]:
        """(number, first position) of the keys that `update` returns."""
        start, stop = self.span()
        return stop - start, start

    def get_seq_length(self) -> int:
        """Positions before the pass."""
        return self.cache.run.low

    def get_max_length(self) -> int:
        return self.cache.max_positions

    get_max_cache_shape = get_max_length


class RaggedCache(transformers.Cache):  # type: ignore[misc]
    """The layers of a model with `config`. Raises CheckpointError for a model with layers that cannot be rewound."""

    def __init__(self, config: Any, max_batch: int, max_positions: int) -> None:
        self.max_batch, self.max_positions = max_batch, whole_blocks(max_positions)
        self.run: Pass
        layers = transformers.DynamicCache(config=config).layers
        if odd := sorted({type(layer).__name__ for layer in layers if type(layer) not in ATTENTION}):
            raise CheckpointError(
                f"{config.model_type}: its layers cache {', '.join(odd)}, which rejected drafts cannot be taken out of",
                hint="a target whose layers all attend to keys and values is needed",
            )
        super().__init__(layers=[RaggedLayer(self, getattr(layer, "sliding_window", None)) for layer in layers])

    @property
    def windowed(self) -> bool:
        """True if a layer has a window."""
        return any(layer.window is not None for layer in self.layers)

    def begin(self, slots: slice, positions: Tensor) -> None:
        """Say which rows the next pass has: `positions` [B, T] of `slots`, ascending in each of them.

        The first and the last position are read back to the host, once per pass.
        """
        low, high = torch.stack((positions[:, 0].min(), positions[:, -1].max())).tolist()
        self.run = Pass(slots, positions, low, high + 1)
