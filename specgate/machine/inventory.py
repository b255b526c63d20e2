"""Inventory of the machine that a run happens on: host, packages, source tree and GPUs. Every probe is guarded, and
nothing is changed.

Imports neither torch nor cupy: versions come from package metadata, GPU facts from NVML (by UUID, never by index).
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import TypeAlias

import specgate
from specgate.analysis.machine.gpu_clocks import visible_among
from specgate.machine.checkout import checkout_with
from specgate.machine.packages import packages
from specgate.redaction import masked

VARIABLES = (
    "CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "OMP_PLACES", "OMP_PROC_BIND", "OMP_SCHEDULE",
    "OMP_WAIT_POLICY", "SPECGATE_CACHE", "SPECGATE_DEMO_GGUF", "SPECGATE_LOAD_PLUGINS", "SPECGATE_PASS_ENV",
)  # fmt: skip
"""The environment variables that are stored, since each can change a figure. No other is, whatever its name."""
_SOURCE_SUFFIXES = (".py", ".so", ".cu", ".cuh", ".json", ".yaml", ".html", ".js", ".sh", ".toml")
_LAYOUT = re.compile(rb"//[^\n]*|\s+")
"""Comments and white space of a CUDA file, which no compiled kernel depends on."""

_SourceFile: TypeAlias = tuple[tuple[str, ...], tuple[int, ...]]
"""(the parts of its path below the package, what changes where its content does: size, times, device and inode)."""


def environment() -> dict[str, object]:
    """JSON-ready facts for env.json. A fact that cannot be read is None."""
    return {
        "host": _host(),
        "python": {"version": platform.python_version(), "implementation": platform.python_implementation()},
        "packages": packages(also=("matplotlib",)),
        "source": {"tree_sha256": source_tree_sha256(), "backends": backend_trees(), **_git()},
        "gpus": gpus(),
        "variables": {name: masked(os.environ[name]) for name in VARIABLES if name in os.environ},
    }


def source_tree_sha256() -> str:
    """SHA-256 over path and content of every source file of the package, in the order of the paths.

    A run asks often, so the files are read again only where a size, a time or an inode is another than before.
    """
    root = os.path.dirname(specgate.__file__)
    return _tree_sha256(root, tuple(sorted(_source_files(root))))


def backend_trees() -> dict[str, str]:
    """Back end → SHA-256 over its source files alone, as `source_tree_sha256` is over all. How CUDA files are laid out
    and commented does not count: a measurement stays one of the same back end.
    """
    root = os.path.dirname(specgate.__file__)
    files = [file for file in sorted(_source_files(root)) if file[0][0] == "backends" and len(file[0]) > 2]
    by_name = groupby(files, key=lambda file: file[0][1])
    return {name: _tree_sha256(root, tuple(inside), code=True) for name, inside in by_name}


@lru_cache(maxsize=16)
def _tree_sha256(root: str, files: tuple[_SourceFile, ...], code: bool = False) -> str:
    digest = hashlib.sha256()
    for parts, _ in files:
        with open(os.path.join(root, *parts), "rb") as file:
            text = file.read()
        if code and parts[-1].endswith((".cu", ".cuh")):
            text = _LAYOUT.sub(b"", text)
        digest.update("/".join(parts).encode() + b"\0" + text + b"\0")
    return digest.hexdigest()


def _source_files(root: str) -> Iterator[_SourceFile]:
    """Plain strings, because `Path` objects take three times as long."""
    # os.walk with followlinks, because four sub-packages are links to folders.
    for folder, _, names in os.walk(root, followlinks=True):
        if any(name.endswith(".safetensors") for name in names):
            continue  # A checkpoint has hashes of its own. A copy for another machine may lack it.
        inner = folder[len(root) :].split(os.sep)[1:]
        for name in names:
            if name.endswith(_SOURCE_SUFFIXES):
                status = os.stat(f"{folder}{os.sep}{name}")
                state = (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_dev, status.st_ino)
                yield (*inner, name), state


def has_cuda_gpu() -> bool:
    """True if there is a GPU and CUDA programs are allowed to see it."""
    return os.environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1") and bool(gpus())


def gpus() -> list[dict[str, object]]:
    """One entry per NVIDIA GPU that NVML shows; empty where there is no driver."""
    try:
        import pynvml
    except ImportError:
        return []
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        driver = pynvml.nvmlSystemGetDriverVersion()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return [{**_gpu(pynvml, handle), "driver": driver} for handle in handles]
    finally:
        pynvml.nvmlShutdown()


def compute_capability() -> tuple[int, int] | None:
    """(major, minor) of the GPU that CUDA programs see first; None where there is none or it cannot be read."""
    gpu = visible_gpu()
    major, _, minor = str((gpu and gpu["compute_capability"]) or "").partition(".")
    return (int(major), int(minor)) if minor else None


def visible_gpu() -> dict[str, object] | None:
    """The entry of `gpus` that CUDA programs see first, which is the one measured; None where there is none.

    NVML counts GPUs in PCI order. CUDA does so among equal GPUs, and always under CUDA_DEVICE_ORDER=PCI_BUS_ID.
    """
    return next(iter(visible_gpus()), None)


def visible_gpus() -> list[dict[str, object]]:
    """The entries of `gpus` that CUDA programs see, in their order (see `visible_gpu`)."""
    return visible_among(gpus(), os.environ.get("CUDA_VISIBLE_DEVICES"))


def visible_gpu_uuid() -> str | None:
    """The UUID of the GPU that is measured; None where there is none or its driver does not give it."""
    uuid = (visible_gpu() or {}).get("uuid")
    return uuid if isinstance(uuid, str) else None


def visible_gpu_uuids(count: int) -> tuple[str, ...]:
    """The UUIDs of the first `count` GPUs that CUDA programs see: of as many as there are, if their driver tells."""
    return tuple(uuid for gpu in visible_gpus()[:count] if isinstance(uuid := gpu["uuid"], str))


def _gpu(nvml: object, handle: object) -> dict[str, object]:
    def probe(name: str, *args: object) -> object:
        try:
            return getattr(nvml, name)(handle, *args)
        except nvml.NVMLError:  # type: ignore[attr-defined]  # the module is passed in, since it is imported lazily
            return None

    memory = probe("nvmlDeviceGetMemoryInfo")
    capability = probe("nvmlDeviceGetCudaComputeCapability")
    return {
        "name": probe("nvmlDeviceGetName"),
        "uuid": probe("nvmlDeviceGetUUID"),
        "compute_capability": f"{capability[0]}.{capability[1]}" if isinstance(capability, tuple) else None,
        "memory_bytes": getattr(memory, "total", None),
        "sm_clock_mhz": probe("nvmlDeviceGetClockInfo", 1),
        "max_sm_clock_mhz": probe("nvmlDeviceGetMaxClockInfo", 1),
        "power_limit_mw": probe("nvmlDeviceGetEnforcedPowerLimit"),
        "temperature_c": probe("nvmlDeviceGetTemperature", 0),
        "clock_event_reasons": probe("nvmlDeviceGetCurrentClocksEventReasons"),
    }


def _host() -> dict[str, object]:
    import psutil

    return {
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "cpu": cpu_model(),
        "cpus_usable": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "load_average": list(os.getloadavg()),
    }


def cpu_model() -> str | None:
    """The name of the CPU; None where the host does not show it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


def _git() -> dict[str, object]:
    checkout = checkout_with(Path(specgate.__file__))
    return {"commit": checkout and checkout.commit, "dirty": checkout and checkout.changed}
