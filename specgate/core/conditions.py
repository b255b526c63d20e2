"""What the machine did while blocks were timed: single readings, samples of them, and a summary per point.

Data classes only. A figure that could not be read is None; for a GPU, `unread` says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from specgate.core.stored_keys import stored_keys

CLOCK_EVENTS: Mapping[int, str] = {
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
"""The bits of NVML's clock event reasons, by name."""
THROTTLES = 0x8 | 0x20 | 0x40 | 0x80
"""The reasons under which a measured time says nothing about the engine. A power cap is not among them: it is the GPU's
normal limit.
"""


def clock_events(bits: int) -> list[str]:
    """The names of the reasons whose bits are set; unnamed bits come last, as one hexadecimal number."""
    unnamed = bits & ~sum(CLOCK_EVENTS)
    return [name for bit, name in CLOCK_EVENTS.items() if bits & bit] + ([hex(unnamed)] if unnamed else [])


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that uses a GPU.

    `owner`: `unseen` means that this host's process table does not have this number, as with another PID namespace.
    """

    pid: int
    owner: Literal["ours", "foreign", "unseen"]
    name: str | None = None


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU at one moment, read through NVML. Violation times count from the moment the driver was loaded.

    `unread`: field → the driver's reason for not giving it.
    """

    uuid: str
    processes: tuple[GpuProcess, ...] | None = None
    clock_event_reasons: int | None = None
    thermal_violation_ns: int | None = None
    power_violation_ns: int | None = None
    sm_clock_mhz: int | None = None
    power_mw: int | None = None
    power_limit_mw: int | None = None
    default_power_limit_mw: int | None = None
    temperature_c: int | None = None
    utilization_pct: int | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    ecc_uncorrected: int | None = None
    """Uncorrected memory errors since the driver was loaded."""
    rows_in_trouble: bool | None = None
    """Whether memory rows wait to be remapped or could not be remapped."""
    unread: Mapping[str, str] = field(default_factory=dict)

    @property
    def silent(self) -> bool:
        """Whether nothing could be read: the driver is gone."""
        return self.processes is None and self.clock_event_reasons is None and self.memory_total_bytes is None

    @property
    def zeros(self) -> tuple[str, ...]:
        """Fields that read 0, which a running GPU never has there: NVML's figures cannot be trusted."""
        return tuple(name for name in NEVER_ZERO if getattr(self, name) == 0)


NEVER_ZERO = ("sm_clock_mhz", "power_mw", "default_power_limit_mw", "temperature_c", "memory_total_bytes")


@dataclass(frozen=True, slots=True)
class HostReading:
    """The host at one moment.

    `other_cpu_share`: the share of the usable CPUs' time since the previous reading that went to other processes than
        ours or was taken by a hypervisor, 0 to 1.
    """

    load_average: float | None
    other_cpu_share: float | None
    available_memory_bytes: int
    swap_used_bytes: int


@dataclass(frozen=True, slots=True)
class Sample:
    """The machine at one moment.

    `worker_generation`: the first worker generation that ran beside the monitor process which took the sample.
    `monotonic_ns`: on the same clock as `Block.span_ns`.
    `wall_ns`: on the wall clock.
    """

    __pydantic_config__: ClassVar = stored_keys(worker_generation="session")

    worker_generation: int
    monotonic_ns: int
    wall_ns: int
    host: HostReading
    gpu: GpuReading | None
    nvml: str | None
    """Why there is no GPU reading."""


@dataclass(frozen=True, slots=True)
class GpuConditions:
    """What the samples of a point say about its GPU.

    `missing`: samples without a reading.
    `unread`: field → the reason why it could not be read in some sample.
    `zeros`: fields that read 0 where 0 is impossible.
    `seen_at_work`: whether at least one sample lists the engine's process or shows a busy GPU.
    `foreign`: processes on the GPU that are not ours.
    `sm_clock_mhz`: role name → the mean SM clock within the blocks of that role.
    `temperature_c`: (lowest, highest).
    """

    uuid: str | None
    missing: int
    why_missing: str | None
    unread: Mapping[str, str]
    zeros: tuple[str, ...]
    seen_at_work: bool
    foreign: tuple[str, ...]
    clock_event_reasons: int
    thermal_violation_ns: int | None
    power_violation_ns: int | None
    power_limit_mw: int | None
    default_power_limit_mw: int | None
    ecc_uncorrected: int | None
    rows_in_trouble: bool
    sm_clock_mhz: Mapping[str, float]
    temperature_c: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Timeline:
    """What the machine did over the time of a point: its rounds, and columns of thinned-out samples.

    Seconds count from the first measured block. A resumed run has several monitor processes, whose times are put end to
    end.

    `rounds`: (round of the point in running order, begin in s, end in s).
    `at_s`: when each entry of the columns begins. An entry stands for several samples.
    `sm_clock_mhz`: the lowest clock among them.
    `temperature_c`, `power_w`, `other_cpu_share`: the highest value among them. None where nothing was read.
    """

    rounds: tuple[tuple[int, float, float], ...] = ()
    at_s: tuple[float, ...] = ()
    sm_clock_mhz: tuple[int | None, ...] = ()
    temperature_c: tuple[int | None, ...] = ()
    power_w: tuple[float | None, ...] = ()
    other_cpu_share: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Conditions:
    """What the machine did from the first measured block of a point to its last.

    `watched`: how many of its `blocks` lie between samples.
    `longest_gap_s`: the longest time without a sample.
    `clock_jump_s`: the largest difference between the progress of the wall clock and that of the monotonic clock from
        one sample to the next.
    `other_cpu_share`: the mean over the samples.
    """

    blocks: int
    watched: int
    samples: int
    longest_gap_s: float
    clock_jump_s: float
    other_cpu_share: float | None
    gpu: GpuConditions
    timeline: Timeline = field(default_factory=Timeline)
