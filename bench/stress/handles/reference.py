"""The reference engine's cache: per layer, one row of positions per slot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from bench.stress.handles.checksum import checksum
from bench.stress.handles.handle import CacheFault
from bench.stress.memory import Reading, live_tensor_bytes, reading
from specgate.backends.eagle3.reference.cache import KVCache
from specgate.backends.eagle3.reference.draft import EagleDrafter
from specgate.backends.eagle3.reference.engine import ReferenceEngine
from specgate.backends.eagle3.reference.kv_planes import plain

NOT_A_NUMBER = "a cached value that is not a number"
AFTER = 3
"""Passes of the target before a cached value is damaged: in the middle of a decode run."""


class ReferenceHandle:
    """As `Handle`."""

    graph_steps = 1
    faults: Mapping[str, CacheFault] = {NOT_A_NUMBER: CacheFault("the target's logits are not finite", mended=True)}

    def __init__(self, engine: ReferenceEngine) -> None:
        self.engine = engine
        self._passes = 0

    def caches(self) -> Iterator[KVCache]:
        yield self.engine.cache
        if isinstance(self.engine.drafter, EagleDrafter):
            yield self.engine.drafter.cache

    def rows(self) -> Iterator[Tensor]:
        """Keys and values of every prompt but its last position."""
        for cache in self.caches():
            for plane in (*cache.k, *cache.v):
                for slot, prompt in enumerate(self.engine.prompts):
                    yield plain(plane)[slot, :, : len(prompt) - 1]

    def prompt_sum(self) -> int:
        return checksum(self.rows())

    def complaints(self) -> list[str]:
        if all(bool(torch.isfinite(rows).all()) for rows in self.rows()):
            return []
        return ["the cache of the prompts holds values that are not finite"]

    @contextmanager
    def damage(self, fault: str) -> Iterator[None]:
        assert fault == NOT_A_NUMBER
        model, forward, self._passes = self.engine.model, self.engine.model.forward, 0

        def damaging(slots: slice, tokens: Tensor, positions: Tensor, boundaries: Sequence[int], *more: Any) -> Any:
            if self._passes == AFTER:
                plain(self.engine.cache.v[0])[0, :, 0] = float("nan")
            result = forward(slots, tokens, positions, boundaries, *more)
            self._passes += 1
            return result

        with patch.object(model, "forward", damaging), torch.inference_mode():
            yield

    def steps_before_fault(self) -> int:
        return self._passes - 1

    def reading(self) -> Reading:
        on_gpu = torch.cuda.memory_allocated() if torch.cuda.is_available() else 0
        return reading(live_tensor_bytes() + on_gpu, 0)
