"""What the machine did while blocks were timed: readings, samples of them, and what they come to per point.

Nouns only. A figure that could not be read is None; for a GPU, `unread` says why.
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
"""The bits of NVML's clock event reasons."""
THROTTLES = 0x8 | 0x20 | 0x40 | 0x80
"""Of these, the ones under which a time says nothing about the engine. A power cap is the GPU's normal limit."""


def clock_events(bits: int) -> list[str]:
    """The names of the reasons that are set; a bit without a name as a number."""
    unnamed = bits & ~sum(CLOCK_EVENTS)
    return [name for bit, name in CLOCK_EVENTS.items() if bits & bit] + ([hex(unnamed)] if unnamed else [])


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that holds a GPU. `unseen`: this host's process table does not have its number (other namespaces)."""

    pid: int
    owner: Literal["ours", "foreign", "unseen"]
    name: str | None = None


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU through NVML at one moment. Violation times count since the driver was loaded."""

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
    """Memory rows wait to be remapped, or could not be."""
    unread: Mapping[str, str] = field(default_factory=dict)

    @property
    def silent(self) -> bool:
        """Nothing could be read: the driver has gone."""
        return self.processes is None and self.clock_event_reasons is None and self.memory_total_bytes is None

    @property
    def zeros(self) -> tuple[str, ...]:
        """Figures that say 0 and cannot be 0 on a GPU that runs: NVML is not telling the truth."""
        return tuple(name for name in NEVER_ZERO if getattr(self, name) == 0)


NEVER_ZERO = ("sm_clock_mhz", "power_mw", "default_power_limit_mw", "temperature_c", "memory_total_bytes")


@dataclass(frozen=True, slots=True)
class HostReading:
    """`other_cpu_share`: of the usable CPUs' time since the previous reading, what went to processes that are not
    ours, or was taken by a hypervisor.
    """

    load_average: float | None
    other_cpu_share: float | None
    available_memory_bytes: int
    swap_used_bytes: int


@dataclass(frozen=True, slots=True)
class Sample:
    """The machine at one moment. `worker_generation` is that of the first engine process that the monitor which took
    the sample could see; `monotonic_ns` is on the clock of `Block.span_ns`.
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
    """What the samples of a point say of its GPU.

    `missing` counts samples without a reading, `unread` and `zeros` hold what single calls refused or gave as 0 where
    0 is impossible. `seen_at_work`: at least once the engine's process was listed, or the GPU was busy. `sm_clock_mhz`
    is the mean within the blocks of each role.
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
    """A point in time: its rounds, and thinned columns of what the watch saw meanwhile.

    Seconds count from the first measured block; the watches of a resumed run are put end to end. `rounds` are
    (round of the point in running order, begin, end). Of the samples that an entry of `at_s` stands for, the columns
    hold the lowest clock and the highest of everything else; None where nothing was read. `power_w` is in watts.
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

    `watched` of its `blocks` lie among samples; `longest_gap_s` is the longest time without one. `clock_jump_s` is the
    most that the wall clock and the monotonic clock came apart between two samples. `other_cpu_share` is a mean.
    """

    blocks: int
    watched: int
    samples: int
    longest_gap_s: float
    clock_jump_s: float
    other_cpu_share: float | None
    gpu: GpuConditions
    timeline: Timeline = field(default_factory=Timeline)
