"""The GPU: which one is used, and the limits of it that launches are made for.

torch and CuPy are imported inside the functions, so that the back end's door can name `OLDEST` without loading either.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from typing import TYPE_CHECKING, Final

from specgate.errors import BackendError, EnvironmentRefused

if TYPE_CHECKING:
    import torch

OLDEST: Final = (8, 0)
"""The lowest compute capability that will do: it is the first with bfloat16 tensor cores."""
STATIC_SHARED: Final = 1024
"""Bytes of shared memory that are left for the arrays that a kernel declares itself."""
RESERVED_SHARED: Final = 1024
"""Bytes of shared memory that the driver takes for itself, of every block."""
LEAST_SHARED: Final = 99 * 1024 - STATIC_SHARED
"""Bytes of shared memory that a block may have on sm_120; sm_80 and sm_90 give it more."""


@dataclass(frozen=True, slots=True)
class Multiprocessors:
    """Number of streaming multiprocessors (SMs) of a GPU, bytes of shared memory of each, and compute capability."""

    count: int
    shared_memory: int
    capability: tuple[int, int] = OLDEST


def first_gpu() -> torch.device:
    """The GPU that CUDA shows first. Raises EnvironmentRefused where there is none, or where it is too old."""
    import torch

    if not torch.cuda.is_available():
        raise EnvironmentRefused(
            "back end cupy: torch sees no CUDA GPU here (no GPU, no driver, or a torch build without CUDA)",
            hint="--backend reference runs on a CPU",
        )
    capability = torch.cuda.get_device_capability()
    if capability < OLDEST:
        raise EnvironmentRefused(
            f"back end cupy: {torch.cuda.get_device_name()} has compute capability {capability[0]}.{capability[1]}",
            hint=f"{OLDEST[0]}.{OLDEST[1]} (sm_80) or later is needed for bfloat16 tensor cores",
        )
    return torch.device("cuda", torch.cuda.current_device())


def shared_gpus(count: int) -> tuple[torch.device, ...]:
    """The first `count` GPUs that CUDA shows. They are equal, and each may write into the memory of the others.

    Raises EnvironmentRefused where there are fewer, where they differ, and where they cannot reach each other.
    """
    import torch

    first_gpu()
    visible, option = torch.cuda.device_count(), f"back end cupy: -o tp={count}"
    if count > visible:
        raise EnvironmentRefused(
            f"{option}: CUDA shows {visible} GPU{'s' if visible > 1 else ''} here",
            hint=f"CUDA_VISIBLE_DEVICES must name {count} GPUs, or tp={visible}",
        )
    gpus = [torch.cuda.get_device_properties(i) for i in range(count)]
    kinds = [f"{gpu.name} ({gpu.major}.{gpu.minor}, {gpu.multi_processor_count} SMs)" for gpu in gpus]
    if unequal := next((i for i, kind in enumerate(kinds) if kind != kinds[0]), None):
        raise EnvironmentRefused(
            f"{option}: GPU 0 is {kinds[0]}, GPU {unequal} is {kinds[unequal]}",
            hint="all GPUs that share a target must be equal: choose them with CUDA_VISIBLE_DEVICES",
        )
    for i, j in permutations(range(count), 2):
        if not torch.cuda.can_device_access_peer(i, j):
            raise EnvironmentRefused(
                f"{option}: GPU {i} cannot reach the memory of GPU {j}",
                hint="peer access is needed, by NVLink or within one PCIe switch: `nvidia-smi topo -p2p rw` shows it",
            )
    open_peer_access(count)
    return tuple(torch.device("cuda", i) for i in range(count))


@cache
def open_peer_access(count: int) -> None:
    """Let the first `count` GPUs read and write each other's memory, in this process."""
    import torch
    from cuda.bindings import driver

    # By the driver: the runtime would leave an error behind where torch has done the same, for whoever asks next.
    fine = (driver.CUresult.CUDA_SUCCESS, driver.CUresult.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)
    contexts = []
    for gpu in range(count):
        torch.zeros(1, device=torch.device("cuda", gpu))  # so that it has a context
        status, context = driver.cuDevicePrimaryCtxRetain(driver.cuDeviceGet(gpu)[1])
        if status != driver.CUresult.CUDA_SUCCESS:
            raise EnvironmentRefused(f"back end cupy: GPU {gpu} gives no context: {status.name}")
        contexts.append(context)
    for own, other in permutations(range(count), 2):
        with torch.cuda.device(own):
            torch.zeros(1, device="cuda")  # so that its context is the current one
            (status,) = driver.cuCtxEnablePeerAccess(contexts[other], 0)
        if status not in fine:
            raise EnvironmentRefused(f"back end cupy: GPU {own} gets no access to GPU {other}: {status.name}")


def shared_memory_limit() -> int:
    """Bytes of dynamic shared memory that a block may have on the current GPU.

    On a machine without a GPU: what the smallest GPU allows that kernels are compiled for.
    """
    attributes = current_attributes()
    return LEAST_SHARED if attributes is None else attributes["MaxSharedMemoryPerBlockOptin"] - STATIC_SHARED


def multiprocessors() -> Multiprocessors | None:
    """Those of the current GPU; None on a machine without a GPU."""
    attributes = current_attributes()
    if attributes is None:
        return None
    import torch

    shared_memory, capability = attributes["MaxSharedMemoryPerMultiprocessor"], torch.cuda.get_device_capability()
    return Multiprocessors(attributes["MultiProcessorCount"], shared_memory, capability)


def multiprocessor_count() -> int:
    """Return the number of SMs of the current GPU. Raises BackendError on a machine without a GPU."""
    gpu = multiprocessors()
    if gpu is None:
        raise BackendError("the number of SMs depends on the GPU; torch sees none")
    return gpu.count


def l2_bytes() -> int:
    """Bytes of the current GPU's L2 cache."""
    import torch

    return int(torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size)


def current_attributes() -> Mapping[str, int] | None:
    """Return attributes of the current GPU, by CuPy's names; None on a machine without a GPU."""
    import torch

    if not torch.cuda.is_available():
        return None
    import cupy

    attributes: Mapping[str, int] = cupy.cuda.Device(torch.cuda.current_device()).attributes
    return attributes
