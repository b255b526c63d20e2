"""The read bandwidth of this machine's memory. It is measured once and stored beside the noise profile; every run that
begins later uses it.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeVar

from specgate import plugins
from specgate.contract.cycle_budget import Bandwidth
from specgate.contract.protocols import ReadsMemory
from specgate.errors import EnvironmentRefused
from specgate.files.json_record import read_record, write_record
from specgate.machine import host, inventory, noise_profile

T = TypeVar("T")

SCHEMA: Final = "specgate.bandwidth/v1"
REPEATS: Final = 30


def measure() -> Bandwidth:
    """Measure the memory of the device that the default engine decodes on.

    Raises EnvironmentRefused where no back end can read it, or where the memory read is not that of the GPU to be
    measured.
    """
    candidates = [(a.rank, name, b) for name, (b, a) in plugins.backends_available().items() if a.usable]
    readers = [b for _, _, b in sorted(candidates, key=lambda entry: entry[:2]) if isinstance(b, ReadsMemory)]
    if not readers:
        raise EnvironmentRefused(
            "no back end that is usable here can read memory", hint="see specgate machine backends"
        )
    reads = readers[-1].read_memory(REPEATS)
    gpu = inventory.visible_gpu_uuid() if inventory.has_cuda_gpu() else None
    if reads.gpu_uuid != gpu:
        raise EnvironmentRefused(
            f"the memory of {reads.device} ({reads.gpu_uuid or 'no GPU'}) was read, but {gpu or 'no GPU'} is measured "
            "here",
            hint="on a GPU, back end cupy reads it: see specgate machine backends",
        )
    low, median, high = statistics.quantiles(reads.elapsed_ns, n=4)
    return Bandwidth(
        measured=datetime.now(UTC).isoformat(timespec="seconds"),
        device=reads.device,
        gpu_uuid=reads.gpu_uuid,
        size=reads.size,
        repeats=len(reads.elapsed_ns),
        bytes_per_s=reads.size / median * 1e9,
        spread=(high - low) / median,
        cache_bytes=None if reads.gpu_uuid else host.cache_bytes(),
    )


def measure_each() -> list[Bandwidth]:
    """As `measure`, of every GPU that CUDA programs see, one after the other: each in a process that sees it alone.

    On a machine with one GPU or none, in this process. Raises EnvironmentRefused as `measure` does.
    """
    uuids = [str(gpu["uuid"]) for gpu in inventory.visible_gpus() if gpu["uuid"]]
    return [measure()] if len(uuids) < 2 else [measure_apart(uuid) for uuid in uuids]


def measure_apart(uuid: str) -> Bandwidth:
    """Measure the GPU `uuid` in a process of its own."""
    return seeing_only(uuid, measure)


def seeing_only(uuid: str, measure: Callable[[], T]) -> T:
    """Run `measure` in a new process that sees the GPU `uuid` alone."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), see_only, (uuid,)) as process:
        try:
            return process.submit(measure).result()
        except BrokenProcessPool as error:
            raise EnvironmentRefused(f"GPU {uuid}: the process that read its memory ended: {error}") from error


def see_only(uuid: str) -> None:
    """Let this process see one GPU. It has loaded nothing of CUDA yet."""
    os.environ["CUDA_VISIBLE_DEVICES"] = uuid


def file_of(out: Path) -> Path:
    """The file for this machine's GPU, or for its CPU where it has no GPU, beside the folder of runs `out`."""
    return beside(noise_profile.file_of(out))


def beside(profile: Path) -> Path:
    """The file beside a noise profile of the same device."""
    return profile.with_name(f"{profile.stem}{noise_profile.BANDWIDTH}")


def bandwidth_of(out: Path) -> Bandwidth | None:
    """The stored bandwidth; None where it has not been measured. Raises InvalidResult where the file holds anything
    else.
    """
    return read_record(Bandwidth, file_of(out), SCHEMA)


def store(measured: Bandwidth, out: Path) -> Path:
    """Store `measured` in the file of its device, and return that. Raises EnvironmentRefused where it cannot be
    written.
    """
    file = beside(noise_profile.file_for(out, measured.gpu_uuid))
    write_record(Bandwidth, measured, file, SCHEMA)
    return file
