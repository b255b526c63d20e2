"""A cache of transformers whose slots stand at different positions, as they do once drafts were accepted.

`DynamicCache` appends to all slots alike, and copies itself to do so. Here every row is written at its own position of
preallocated memory. To rewind a slot is to use a lower position: what lies behind it is never looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
import transformers
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin, DynamicLayer, DynamicSlidingWindowLayer

from specgate.backends.eagle3.reference.cache import whole_blocks
from specgate.errors import CheckpointError

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
