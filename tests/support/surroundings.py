"""Blocks with times, and the machine samples around them. All is quiet unless a test disturbs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from specgate.contract import Block, Plan, Run
from specgate.contract.conditions import Conditions, GpuProcess, GpuReading, HostReading, Sample
from tests.support.factories import blocks_of, plan_of, run_of

UUID = "GPU-5a1e0000-0000-4000-8000-000000000001"
ENGINE = 4711
SECOND = 1_000_000_000
BLOCK_NS, DECODE_NS, PAUSE_NS = 2 * SECOND, 19 * SECOND // 10, SECOND // 4
BOOT_TO_EPOCH_NS = 1_795_000_000 * SECOND

QUIET_HOST = HostReading(load_average=0.4, other_cpu_share=0.02, available_memory_bytes=64 << 30, swap_used_bytes=0)
BUSY_GPU = GpuReading(
    uuid=UUID,
    processes=(GpuProcess(ENGINE, "ours"),),
    clock_event_reasons=0,
    thermal_violation_ns=7_000,
    power_violation_ns=0,
    sm_clock_mhz=1980,
    power_mw=420_000,
    power_limit_mw=700_000,
    default_power_limit_mw=700_000,
    temperature_c=51,
    utilization_pct=99,
    memory_used_bytes=20 << 30,
    memory_total_bytes=150_754_820_096,
    ecc_uncorrected=0,
    rows_in_trouble=False,
)
"""As read from an H200 under load."""


def timed(blocks: Sequence[Block], start_ns: int = 100 * SECOND) -> list[Block]:
    """The blocks one after another, two seconds each, of which they decode 1.9."""
    starts = (start_ns + i * (BLOCK_NS + PAUSE_NS) for i in range(len(blocks)))
    return [replace(lasting(b, DECODE_NS), span_ns=(at, at + BLOCK_NS)) for b, at in zip(blocks, starts, strict=True)]


def lasting(block: Block, ns: int) -> Block:
    """The block with all its times stretched, so that it decodes for about `ns`."""
    step_ns = ns // len(block.step_ns)
    phases = {name: ns * part // block.elapsed_ns for name, part in block.phase_ns.items()}
    times = (step_ns,) * len(block.step_ns)
    return replace(block, step_ns=times, elapsed_ns=sum(times), phase_ns=phases)


def sample(at_ns: int, worker_generation: int = 0, **gpu: Any) -> Sample:
    return Sample(worker_generation, at_ns, BOOT_TO_EPOCH_NS + at_ns, QUIET_HOST, replace(BUSY_GPU, **gpu), None)


def watched(blocks: Sequence[Block], *, worker_generation: int = 0, interval_ns: int = SECOND // 2) -> list[Sample]:
    """Samples from one second before the first of these timed blocks to one second after the last."""
    spans = [b.span_ns for b in blocks if b.span_ns is not None]
    start, end = spans[0][0] - SECOND, spans[-1][1] + SECOND
    return [sample(at, worker_generation) for at in range(start, end + 1, interval_ns)]


def no_gpu(result: Sample) -> Sample:
    return replace(result, gpu=None, nvml="no NVIDIA driver: NVML Shared Library Not Found")


def gpu(result: Sample, **changes: Any) -> Sample:
    assert result.gpu is not None
    return replace(result, gpu=replace(result.gpu, **changes))


def working(result: Sample, work_ns: int | None) -> Sample:
    """The sample with this CPU time for the watch's piece of work."""
    return replace(result, host=replace(result.host, work_ns=work_ns))


PLAN = plan_of()
BLOCKS = timed(blocks_of(PLAN))
SAMPLES = watched(BLOCKS)
MIDDLE = len(SAMPLES) // 2


def disturbed(change: Callable[[Sample], Sample], at: slice = slice(MIDDLE, MIDDLE + 1)) -> list[Sample]:
    """The quiet samples with some of them changed: by default a single one, in the middle."""
    changed = list(SAMPLES)
    changed[at] = map(change, changed[at])
    return changed


def conditions(samples: Sequence[Sample], blocks: Sequence[Block] = BLOCKS, plan: Plan = PLAN) -> Conditions:
    from specgate.analysis.machine.conditions import conditions_of

    (machine,) = conditions_of(plan, blocks, samples).values()
    return machine


def watched_run(samples: Sequence[Sample], blocks: Sequence[Block] = BLOCKS, plan: Plan = PLAN) -> Run:
    from specgate.analysis.machine.conditions import conditions_of

    return run_of(plan, blocks, conditions=conditions_of(plan, blocks, samples))
