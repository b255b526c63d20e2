"""Is this machine fit to measure on? Each check says what was found and what would be right. Nothing is changed.

A check rejects what the policy's `environment` rule would reject in a run. All other checks only warn.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import psutil

from specgate.contract import Bandwidth, Rule
from specgate.contract.conditions import THROTTLES, GpuReading, HostReading, MachineLimits, clock_events
from specgate.machine import inventory
from specgate.machine.host import HostProbe, cpu_quota, frequency_governors, usable_cpus
from specgate.machine.nvml import GpuProbe, NvmlMissing

LOOK_S = 0.5
"""Seconds for which the host is observed to see how much of its CPUs others use."""
NEAR_SLOWDOWN_C = 10
"""A GPU within this many °C of its slow-down temperature is warned about."""
LITTLE_MEMORY = 2 << 30
"""Bytes of free host memory below which a check warns."""
STEADY_READS = 0.02
"""The largest spread (interquartile range over median) of memory reads on a machine at rest."""
MUST_BE_READ = ("processes", "clock_event_reasons")
"""GPU readings without which a disturbance cannot be detected."""

Level = Literal["ok", "warn", "reject"]


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the doctor's report.

    `right`: what would be right, and how to get there where that does not go without saying.
    `gpu`: which GPU it is about, counted as CUDA does, where several were looked at.
    """

    name: str
    found: str
    right: str
    level: Level
    gpu: int | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a policy on the machine. Without a rule that sets some, no check rejects.

    `gpu`: whether the rule asks for a GPU that NVML can read.
    `max_other_cpu_share`: the largest share of the CPUs that others may use, 0 to 1.
    `required`: whether the rule is required.
    """

    gpu: bool
    max_other_cpu_share: float
    required: bool

    @classmethod
    def of(cls, rules: Sequence[tuple[Rule, MachineLimits]]) -> Limits:
        """Return the limits of the first of `rules`."""
        for rule, limits in rules:
            return cls(limits.gpu, limits.max_other_cpu_share, rule.required)
        return cls(gpu=False, max_other_cpu_share=1.0, required=False)

    @property
    def gpu_level(self) -> Level:
        """The level of a failed GPU check."""
        return "reject" if self.gpu and self.required else "warn"

    @property
    def host_level(self) -> Level:
        """The level of a failed host check."""
        return "reject" if self.required else "warn"


def examine(limits: Limits) -> list[Check]:
    """Check the host, and every GPU that CUDA programs see. Takes half a second."""
    probe = HostProbe(os.getpid())
    checks = list(examine_gpus(probe, limits))
    time.sleep(LOOK_S)
    return [*checks, *host_checks(probe.read(), limits)]


def examine_gpus(probe: HostProbe, limits: Limits) -> Iterator[Check]:
    """Yield the checks of every GPU that CUDA programs see."""
    gpus = [gpu for gpu in inventory.visible_gpus() if isinstance(gpu["uuid"], str)]
    uuids = [str(gpu["uuid"]) for gpu in gpus]
    if len(uuids) < 2:
        yield from examine_gpu(probe, limits, uuids[0] if uuids else None)
        return
    for number, uuid in enumerate(uuids):
        yield from (replace(check, gpu=number) for check in examine_gpu(probe, limits, uuid))


def examine_gpu(probe: HostProbe, limits: Limits, uuid: str | None) -> Iterator[Check]:
    """The checks of one GPU. Without NVML there is one check, which says so."""
    right = "an NVIDIA GPU whose driver NVML can ask"
    try:
        with GpuProbe(uuid, probe.owner) as gpu:
            reading, settings = gpu.read(), gpu.settings()
    except NvmlMissing as missing:
        yield Check("NVML", str(missing), right, limits.gpu_level if limits.gpu else "ok")
        return
    yield Check("NVML", f"{settings['name']}, driver {settings['driver']}, {reading.uuid}", right, "ok")
    yield from plausibility_checks(reading, limits)
    yield from state_checks(reading, settings, limits)
    yield from setting_checks(reading, settings, limits)


# ── the GPU ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def plausibility_checks(gpu: GpuReading, limits: Limits) -> Iterator[Check]:
    """Can the other readings be believed?"""
    zeros = ", ".join(gpu.zeros)
    level = limits.gpu_level if zeros else "ok"
    yield Check("NVML's figures", f"0 for {zeros}" if zeros else "plausible", "no 0 where 0 is impossible", level)
    if refused := [f"{name}: {gpu.unread[name]}" for name in MUST_BE_READ if name in gpu.unread]:
        yield Check("NVML's answers", "; ".join(refused), "NVML gives processes and clock events", limits.gpu_level)


def state_checks(gpu: GpuReading, settings: Mapping[str, Any], limits: Limits) -> Iterator[Check]:
    """Check what comes and goes: processes, slow-downs, heat and memory errors."""
    if gpu.processes is not None:
        who = ", ".join(f"pid {p.pid} ({p.name or p.owner})" for p in gpu.processes if p.owner != "ours")
        yield Check("GPU processes", who or "none", "none: end them, or wait", limits.gpu_level if who else "ok")
    if (bits := gpu.clock_event_reasons) is not None:
        level = limits.gpu_level if bits & THROTTLES else "ok"
        yield Check("clock events", ", ".join(clock_events(bits)) or "none", "no slow-down: let it cool", level)
    if (lost := gpu.thermal_violation_ns) is not None:
        state = f"{lost / 1e9:.1f} s since the driver was loaded"
        yield Check("thermal violations", state, "0 s; a run is judged by what is added", "warn" if lost else "ok")
    if gpu.temperature_c is not None and settings["slowdown_c"]:
        margin = settings["slowdown_c"] - gpu.temperature_c
        level = "ok" if margin > NEAR_SLOWDOWN_C else "warn" if margin > 0 else limits.gpu_level
        right = f"{NEAR_SLOWDOWN_C} °C or more below {settings['slowdown_c']} °C"
        yield Check("temperature", f"{gpu.temperature_c} °C", right, level)
    if gpu.ecc_uncorrected is not None:
        level = limits.gpu_level if gpu.ecc_uncorrected else "ok"
        state = f"{gpu.ecc_uncorrected} uncorrected since the driver was loaded"
        yield Check("memory errors", state, "0; otherwise its owner resets the GPU", level)
    if gpu.rows_in_trouble is not None:
        state, level = ("pending or failed", limits.gpu_level) if gpu.rows_in_trouble else ("none pending", "ok")
        yield Check("remapped rows", state, "none pending: its owner resets the GPU", level)


def setting_checks(gpu: GpuReading, settings: Mapping[str, Any], limits: Limits) -> Iterator[Check]:
    """Check an administrator's settings. It is never changed here; the command that would change it is printed."""
    limit, default = gpu.power_limit_mw, gpu.default_power_limit_mw
    if limit and default:
        right = f"{default / 1000:.0f} W: nvidia-smi -i {gpu.uuid} -pl {default / 1000:.0f}"
        yield Check("power limit", f"{limit / 1000:.0f} W", right, limits.gpu_level if limit < default else "ok")
    for name, right, recommended in (
        ("ecc", "on: times without ECC cannot be compared with times with it", True),
        ("mig", "off: a MIG slice is not the whole GPU", False),
        ("persistence", f"on: nvidia-smi -i {gpu.uuid} -pm 1", True),
    ):
        if settings[name] is not None:
            setting = "on" if settings[name] else "off"
            yield Check(_LABELS[name], setting, right, "ok" if bool(settings[name]) is recommended else "warn")
    width, widest = settings["pcie_width"], settings["max_pcie_width"]
    if width and widest:
        yield Check("PCIe width", f"x{width}", f"x{widest}", "ok" if width >= widest else "warn")


_LABELS = {"ecc": "ECC", "mig": "MIG", "persistence": "persistence mode"}


def bandwidth_check(bandwidth: Bandwidth, gpu: int | None = None) -> Check:
    """The measured bandwidth. A wide spread means that others read the memory at the same time.

    `gpu`: which of several GPUs. Said in a word then, if it was steady.
    """
    rate = f"{bandwidth.bytes_per_s / 1e9:,.0f} GB/s"
    right = f"quartiles at most {STEADY_READS:.0%} apart: let the machine come to rest"
    if gpu is not None and bandwidth.spread <= STEADY_READS:
        return Check("read bandwidth", rate, right, "ok", gpu)
    rate += f" (median of {bandwidth.repeats} reads of {bandwidth.size / 1e9:.1f} GB)" if gpu is None else ""
    level: Level = "ok" if bandwidth.spread <= STEADY_READS else "warn"
    return Check("read bandwidth", f"{rate}, quartiles {bandwidth.spread:.1%} apart", right, level, gpu)


# ── the host ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def host_checks(host: HostReading, limits: Limits) -> Iterator[Check]:
    """The checks of the host's CPUs and memory."""
    cpus = len(usable_cpus())
    share, ceiling = host.other_cpu_share, limits.max_other_cpu_share
    if share is None:
        yield Check("CPU use of others", "not told by this host", f"at most {ceiling:.0%}", "warn")
    else:
        level = limits.host_level if share > ceiling else "ok"
        yield Check("CPU use of others", f"{share:.0%} of {cpus} CPUs", f"at most {ceiling:.0%}", level)
    if host.load_average is not None:
        level = "ok" if host.load_average <= cpus else "warn"
        yield Check("load average", f"{host.load_average:.2f}", f"at most {cpus}, the usable CPUs", level)
    free, total = host.available_memory_bytes, psutil.virtual_memory().total
    memory = f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB"
    yield Check("free memory", memory, "2 GiB or more", "ok" if free >= LITTLE_MEMORY else "warn")
    swap = host.swap_used_bytes
    yield Check("swap in use", f"{swap / 2**20:.0f} MiB", "0 MiB", "warn" if swap else "ok")
    governors = frequency_governors()
    level = "ok" if governors <= {"performance"} else "warn"
    yield Check("CPU frequency", ", ".join(sorted(governors)) or "not told by this host", "performance", level)
    quota = cpu_quota()
    limited = quota is not None and quota < cpus
    yield Check("CPU quota", f"{quota:g} CPUs" if quota else "none", f"none, or {cpus}", "warn" if limited else "ok")
