"""Memory of a process and its device after each round, and its growth."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Final

import psutil

SETTLED: Final = 1
"""Rounds after which everything that is made once has been made: kernels, graphs, workspaces."""
LEAST_ROUNDS: Final = SETTLED + 3
"""With fewer rounds there are too few readings to tell growth from chance."""
NOISE: Final = 16 << 20
"""Bytes of a whole process or device that may come and go. What a leak takes grows with every round."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Memory in use at one moment, after a garbage collection.

    `tensor_bytes`: of the tensors that are alive, by torch's account. It must be the same after every round.
    `device_bytes`: of the GPU's memory, by the driver's account; 0 without a GPU.
    `host_bytes`: resident memory of the process. `open_files`, `threads`: of the process.
    """

    tensor_bytes: int
    device_bytes: int
    host_bytes: int
    open_files: int
    threads: int


def reading(tensor_bytes: int, device_bytes: int) -> Reading:
    """The reading of this process now. An engine's handle knows the first two."""
    process = psutil.Process()
    return Reading(tensor_bytes, device_bytes, process.memory_info().rss, process.num_fds(), process.num_threads())


def live_tensor_bytes() -> int:
    """Bytes of all tensors that Python can reach on the CPU, each storage once."""
    import torch

    gc.collect()
    storages = {}
    for item in gc.get_objects():
        # By its class: some objects answer isinstance with code of their own.
        if issubclass(type(item), torch.Tensor) and item.device.type == "cpu":
            storage = item.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def leaks(readings: Sequence[Reading]) -> list[str]:
    """Return the growth over the rounds, a sentence each. The rounds in which things are made for the first time do not
    count.

    Tensors and files are counted exactly: their last reading must be no larger than the first. Memory of a whole
    process or device has noise: a leak is what grew in every round, and by more than NOISE in all.
    """
    settled = readings[SETTLED:]
    if len(settled) < LEAST_ROUNDS - SETTLED:
        return [f"{len(readings)} rounds are too few to see a leak: {LEAST_ROUNDS} are needed"]
    growing = []
    for name in (field.name for field in fields(Reading)):
        values = [getattr(one, name) for one in settled]
        grew, noisy = values[-1] - values[0], name in ("device_bytes", "host_bytes")
        always = all(later > earlier for earlier, later in pairwise(values))
        if (always and grew > NOISE) if noisy else grew > 0:
            growing.append(f"{name} grew from {values[0]:,} to {values[-1]:,} in {len(settled) - 1} rounds")
    return growing
