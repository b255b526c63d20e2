"""State of the machine while blocks were timed: single readings, samples of them, and a summary per point.

Data classes only. A figure that could not be read is None; for a GPU, `unread` says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

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
POWER_CAPS = 0x4 | 0x80
"""The reasons that say that the GPU draws as much power as it may, so that its clock is below its highest."""


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
    max_sm_clock_mhz: int | None = None
    """The highest clock that this GPU can reach."""
    power_mw: int | None = None
    energy_mj: int | None = None
    """Millijoules since the driver was loaded; of several GPUs, their sum."""
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
        """True if nothing could be read: the driver is gone."""
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
    work_ns: int | None = None
    """CPU time of a fixed piece of work (`machine.cpu_pace`). None where the clock of CPU time is too coarse.
    """


class ClockReading(NamedTuple):
    """The SM clock and the energy of a GPU between two samples. None where the driver does not tell.

    `monotonic_ns`: on the same clock as `Block.span_ns`. `event_reasons`: as in `GpuReading.clock_event_reasons`.
    `energy_mj`: as in `GpuReading`.
    """

    monotonic_ns: int
    sm_mhz: int | None
    event_reasons: int | None
    energy_mj: int | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """The machine at one moment.

    `worker_generation`: the first worker generation that ran beside the monitor process which took the sample.
    `monotonic_ns`: on the same clock as `Block.span_ns`.
    `wall_ns`: on the wall clock.
    """

    worker_generation: int
    monotonic_ns: int
    wall_ns: int
    host: HostReading
    gpu: GpuReading | None
    nvml: str | None
    """Why there is no GPU reading."""
    clocks: tuple[ClockReading, ...] = ()
    """What was read of the GPU's clock since the sample before this one."""


def clock_readings(sample: Sample) -> tuple[ClockReading, ...]:
    """All that `sample` tells of the GPU's clock and energy, in order of time; empty where there is no GPU reading."""
    if (gpu := sample.gpu) is None:
        return ()
    own = ClockReading(sample.monotonic_ns, gpu.sm_clock_mhz, gpu.clock_event_reasons, gpu.energy_mj)
    return *sample.clocks, own


@dataclass(frozen=True, slots=True)
class RoleClock:
    """The SM clock of one role in a part of its blocks, over as much of that part as every role has.

    `mhz`: the mean over samples at times at which every role has some; None where there are none.
    `standard_error_mhz`, `freedom`: of `mhz`, over blocks, and its degrees of freedom; the error is None where these
        are too few.
    `blocks`, `samples`: how many the mean is of.
    `part_s`: for how many seconds the role is in this part: the median over its blocks.
    `capped`: the share of the samples at a power cap. `explained`: that of those below the highest clock. None where
        there are none, or nothing tells.
    """

    mhz: float | None
    standard_error_mhz: float | None
    freedom: int
    blocks: int
    samples: int
    part_s: float
    capped: float | None = None
    explained: float | None = None


@dataclass(frozen=True, slots=True)
class ClockComparison:
    """Role name → its clock, compared like with like (`analysis.machine.clock_comparison`).

    `decoding`: the whole blocks where they hold no prefill of their own.
    `prefill`: empty where blocks hold none.
    """

    decoding: Mapping[str, RoleClock]
    prefill: Mapping[str, RoleClock] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GpuConditions:
    """State of a point's GPU by its samples.

    `missing`: samples without a reading.
    `unread`: field → the reason why it could not be read in some sample.
    `zeros`: fields that read 0 where 0 is impossible.
    `seen_at_work`: whether at least one sample lists the engine's process or shows a busy GPU.
    `foreign`: processes on the GPU that are not ours.
    `sm_clock_mhz`: role name → the mean SM clock of that role while it decodes.
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
    max_sm_clock_mhz: int | None = None
    """None where the driver does not tell."""
    power_w: float | None = None
    """The mean within the blocks; None where `max_sm_clock_mhz` was not sampled."""
    capped: float | None = None
    """The share of the samples within the blocks in which the GPU was at a power cap; None as for `power_w`."""
    prefill_clock_mhz: Mapping[str, float] = field(default_factory=dict)
    """Role name → the mean SM clock within the prefills of its blocks, where blocks hold their own.

    Prefill draws more power than decoding, so its clocks are lower, and roles differ in how much of a block it is.
    """
    common_clocks: ClockComparison = field(default_factory=lambda: ClockComparison({}))
    """The clocks by which the roles are compared."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """State of the machine over the time of a point: its rounds, and columns of thinned-out samples.

    Seconds count from the first measured block. A resumed run has several monitor processes, whose times are put end to
    end.

    `rounds`: (round of the point in running order, begin in s, end in s).
    `at_s`: when each entry of the columns begins. An entry stands for several samples.
    `sm_clock_mhz`: the lowest clock among them.
    `temperature_c`, `power_w`, `other_cpu_share`: the highest value among them. None where nothing was read.
    `slow_cpu_share`: the share of them in which the watch's work was slow (`CpuPace`), 0 to 1; None where none tells.
        Empty where the pace of the whole point is not known.
    """

    rounds: tuple[tuple[int, float, float], ...] = ()
    at_s: tuple[float, ...] = ()
    sm_clock_mhz: tuple[int | None, ...] = ()
    temperature_c: tuple[int | None, ...] = ()
    power_w: tuple[float | None, ...] = ()
    other_cpu_share: tuple[float | None, ...] = ()
    slow_cpu_share: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True)
class CpuPace:
    """Evenness of the CPUs' speed (`analysis.machine.cpu_pace`), by the CPU time of a fixed piece of work.

    `readings`: samples that tell it. `fastest_ns`: the fastest tenth took this or less.
    `slow`: how many readings took much longer. `slowest`: the slowest twentieth took this many times as long as
        `fastest_ns`, or longer.
    """

    readings: int
    fastest_ns: int
    slow: int
    slowest: float

    @property
    def slow_share(self) -> float:
        """The share of readings that took much longer, 0 to 1."""
        return self.slow / self.readings


# ── the host, block by block ─────────────────────────────────────────────────────────────────────────────────────────


OWN_THREADS = 0.5
"""CPUs that the threads of an engine may want beyond those that there are before it counts as waiting for itself."""


@dataclass(frozen=True, slots=True)
class CpuUse:
    """Use of the CPUs during one block: growth of the kernel's counters from right before the harness asked for the
    block to right after its answer. Nanoseconds. A counter that was not read is None; `unread` says why.

    `wall_ns`: the time between the two readings.
    `cpus`: how many CPUs the run may use. `offered`: how many CPUs' time that is; less where a control group limits it.
    `busy_ns`: the time that the usable CPUs worked or were stolen, added up.
    `ours_ns`: the CPU time of the harness and of all that it has started, but for the idle engine of the other side.
    `stolen_ns`: the time that a hypervisor took from the CPU that it took most from.
    `wanted_ns`: the time that the engine's threads ran or waited for a CPU, added up.
    `waited_ns`: how long the harness's thread or a thread of the engine waited for a CPU while it could have run: the
        longest of them.
    `pressure_ns`: the time in which at least one task of the machine waited for a CPU (pressure stall information).
    `throttled_ns`: the time for which a control group's limit held threads back.
    """

    wall_ns: int
    cpus: int
    offered: float
    busy_ns: int | None = None
    ours_ns: int | None = None
    stolen_ns: int | None = None
    wanted_ns: int | None = None
    waited_ns: int | None = None
    pressure_ns: int | None = None
    throttled_ns: int | None = None
    unread: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HostLimits:
    """Limits beyond which a block counts as disturbed, and the share of rounds that may be set aside for it. All are
    shares, 0 to 1.

    `max_other_cpu_share`: of the usable CPUs' time, that others may use during a block.
    `max_cpu_wait`: of a block's time, that a thread may wait for a CPU or a CPU may be stolen.
    `max_set_aside`: of a point's rounds.
    """

    max_other_cpu_share: float
    max_cpu_wait: float
    max_set_aside: float


@dataclass(frozen=True, slots=True)
class MachineLimits:
    """Limits of a rule on the machine that a run is measured on.

    `gpu`: whether a GPU has to be readable by NVML.
    `max_other_cpu_share`: the largest share of the CPUs that others may use, 0 to 1.
    `host`: limits on single blocks; None for a rule that judges the host by its mean over all samples.
    """

    gpu: bool
    max_other_cpu_share: float
    host: HostLimits | None


@dataclass(frozen=True, slots=True)
class Disturbance:
    """A block during which the engine did not have the CPUs to itself.

    `reason_code`: `other_cpu_share`, `cpu_wait`, `stolen`, `throttled` or `pressure`.
    `share`: how large that was, as a share.
    """

    prompt_set: int
    round: int
    role: str
    reason_code: str
    share: float


@dataclass(frozen=True, slots=True)
class HostJudgement:
    """Judgement of a point's blocks by their CPU use. It follows from the host's counters alone, never from a block's
    time. So leaving out disturbed rounds is no removal of outliers.

    `rounds`: how many rounds were measured.
    `seen`: reason code → the number of blocks that could be judged by it.
    `unseen`: counter → why some block could not be judged by it.
    `disturbed`: the disturbed blocks.
    `set_aside`: (prompt set, round) of the rounds whose times are left out; empty if there are too many of them.
    `too_many`: how many rounds would have to be left out, if that is more than the limits allow; else 0.
    `other_cpu_share`, `cpu_wait`: the largest of any block, as shares; None if no block tells.
    `cpus`: how many CPUs' time the run may use.
    `cpus_wanted`: how much the engine's threads wanted in the block in which they wanted most; None if no block tells.
    """

    limits: HostLimits
    blocks: int
    rounds: int
    seen: Mapping[str, int]
    unseen: Mapping[str, str]
    disturbed: tuple[Disturbance, ...]
    set_aside: tuple[tuple[int, int], ...]
    too_many: int
    other_cpu_share: float | None
    cpu_wait: float | None
    cpus: float | None
    cpus_wanted: float | None

    @property
    def unjudged(self) -> bool:
        """True if no block could be judged by anything."""
        return not self.seen

    @property
    def starved(self) -> bool:
        """True if the engine has more busy threads than there are CPUs, so that it waits for itself."""
        return self.cpus is not None and self.cpus_wanted is not None and self.cpus_wanted > self.cpus + OWN_THREADS


@dataclass(frozen=True, slots=True)
class Conditions:
    """State of the machine from the first measured block of a point to its last.

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
    host: HostJudgement | None = None
    """The CPUs block by block. None where the policy does not ask for it, or where the engine's clock is scripted."""
    cpu_pace: CpuPace | None = None
    """None where too few samples tell it."""
