"""Check that weights fit into memory before any are read or generated."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import psutil
import torch

from specgate.checkpoints.heads.tensors import Wanted
from specgate.errors import EnvironmentRefused


def require_room(
    tensors: Mapping[str, Wanted], dtype: torch.dtype, device: torch.device | str, what: str, more: int = 0
) -> None:
    """Raise EnvironmentRefused, with the figures, if the weights do not fit into the free memory of `device`.

    Counted are the `tensors` stored in `dtype`, and `more` further bytes. `what` names the model in the message.
    """
    weights, free = weight_bytes(tensors, dtype), free_bytes(torch.device(device))
    if weights + more > free:
        name = str(dtype).removeprefix("torch.")
        beside = f" and {more / 1e9:.2f} GB beside them" if more else ""
        raise EnvironmentRefused(
            f"{what}: {weights / 1e9:.2f} GB of weights in {name}{beside}, but {device} has {free / 1e9:.2f} GB free",
            hint="a smaller geometry, a narrower dtype, or a device with more memory is needed",
        )


@contextmanager
def refusing_overflow(what: str, hint: str = "ask for a shorter context") -> Iterator[None]:
    """Turn torch's error for exhausted GPU memory into EnvironmentRefused. Torch's message states the figures."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise EnvironmentRefused(f"{what}: {str(error).splitlines()[0]}", hint=hint) from error


def weight_bytes(tensors: Mapping[str, Wanted], dtype: torch.dtype) -> int:
    """Bytes of the `tensors` when stored in `dtype`, quantised ones as they are."""
    return sum(math.prod(w.shape) * (1 if w.dtype == "U8" else dtype.itemsize) for w in tensors.values())


def free_bytes(device: torch.device) -> int:
    """Bytes that could be allocated on `device` now. Memory that torch holds in reserve counts as free; what its
    allocator is forbidden (`PYTORCH_CUDA_ALLOC_CONF=per_process_memory_fraction:0.7`) does not.
    """
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        free, total = torch.cuda.mem_get_info(index)
        reserved, allocated = torch.cuda.memory_reserved(index), torch.cuda.memory_allocated(index)
        allowed = int(total * torch.cuda.get_per_process_memory_fraction(index))
        return min(free + reserved, allowed) - allocated
    return psutil.virtual_memory().available


def split_no_large_blocks() -> None:
    """Have torch's allocator split no block of GPU memory of more than 256 MB, unless the user says how it splits.

    A prefill asks for blocks of many sizes, and a split one goes back to the driver only when all its parts are free:
    of the 120b at 32K, 13 GB beyond its plan were held so on an H200.
    """
    settings = os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
    if "max_split_size_mb" not in settings and "expandable_segments" not in settings:
        # What the variable says is said again: settings that are left out become the defaults.
        torch._C._accelerator_setAllocatorSettings(",".join(filter(None, (settings, "max_split_size_mb:256"))))
