"""The read bandwidth of this machine's memory. It is measured once and stored beside the noise passport; every run that
begins later uses it.
"""

from __future__ import annotations

import statistics
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from specgate import plugins
from specgate.api import ReadsMemory
from specgate.core.cycle_budget import Bandwidth
from specgate.errors import EnvironmentRefused
from specgate.files.json_record import read_record, write_record
from specgate.machine import host, inventory, noise_passport

SCHEMA: Final = "specgate.bandwidth/v1"
REPEATS: Final = 30


def measure() -> Bandwidth:
    """Measure the memory of the device that the default engine decodes on.

    Raises EnvironmentRefused where no back end can read it, or where the memory read is not that of the GPU to be
    measured.
    """
    found = [(a.rank, name, b) for name, (b, a) in plugins.backends_available().items() if a.usable]
    readers = [b for _, _, b in sorted(found, key=lambda entry: entry[:2]) if isinstance(b, ReadsMemory)]
    if not readers:
        raise EnvironmentRefused("no back end that is usable here can read memory", hint="see specgate backends")
    reads = readers[-1].read_memory(REPEATS)
    gpu = inventory.visible_gpu_uuid() if inventory.has_cuda_gpu() else None
    if reads.gpu_uuid != gpu:
        raise EnvironmentRefused(
            f"the memory of {reads.device} ({reads.gpu_uuid or 'no GPU'}) was read, but {gpu or 'no GPU'} is measured "
            "here",
            hint="on a GPU, back end cupy reads it: see specgate backends",
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


def file_of(out: Path) -> Path:
    """The file for this machine's GPU, or for its CPU where it has no GPU, beside the folder of runs `out`."""
    passport = noise_passport.file_of(out)
    return passport.with_name(f"{passport.stem}-bandwidth.json")


def bandwidth_of(out: Path) -> Bandwidth | None:
    """The stored bandwidth; None where it has not been measured. Raises InvalidResult where the file holds anything
    else.
    """
    return read_record(Bandwidth, file_of(out), SCHEMA)


def store(found: Bandwidth, out: Path) -> Path:
    """Store `found`, and return the file. Raises EnvironmentRefused where it cannot be written."""
    write_record(Bandwidth, found, file_of(out), SCHEMA)
    return file_of(out)
