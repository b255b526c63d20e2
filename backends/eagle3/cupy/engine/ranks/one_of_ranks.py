"""Protocol of one rank in a prefill over several GPUs: `rank.Rank`, or what stands for one on a CPU."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

import torch

from specgate.backends.eagle3.cupy.engine.prefill import PrefillMode
from specgate.backends.eagle3.cupy.memory.buffers import Buffers
from specgate.backends.eagle3.cupy.memory.model import Draft, Target


class OnStream(Protocol):
    """As `stream.Stream`; `torch` is None on a CPU."""

    @property
    def torch(self) -> torch.cuda.Stream | None: ...

    def current(self) -> AbstractContextManager[None]: ...


class OneOfRanks(Protocol):
    """One rank with its part of the target, and the whole draft."""

    target: Target
    draft: Draft | None
    b: Buffers
    mode: PrefillMode
    device: torch.device

    @property
    def stream(self) -> OnStream: ...
