"""Whether weights fit into memory, before any are read or made."""

from __future__ import annotations

import math
from collections.abc import Mapping

import psutil
import torch

from specgate.backends.eagle3.checkpoint import Wanted
from specgate.errors import EnvironmentRefused


def require_room(wanted: Mapping[str, Wanted], dtype: torch.dtype, device: torch.device | str, what: str) -> None:
    """Raise EnvironmentRefused, with numbers, where the tensors `wanted` need more than `device` has free."""
    needed, free = weight_bytes(wanted, dtype), free_bytes(torch.device(device))
    if needed > free:
        name = str(dtype).removeprefix("torch.")
        raise EnvironmentRefused(
            f"{what}: {needed / 1e9:.2f} GB of weights in {name}, but {device} has {free / 1e9:.2f} GB free",
            hint="a smaller geometry, a narrower dtype, or a device with more memory is needed",
        )


def weight_bytes(wanted: Mapping[str, Wanted], dtype: torch.dtype) -> int:
    return sum(math.prod(want.shape) for want in wanted.values()) * dtype.itemsize


def free_bytes(device: torch.device) -> int:
    """What could be allocated now; memory that torch holds in reserve counts as free."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return psutil.virtual_memory().available
