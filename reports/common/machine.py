"""What the machine did to the times of a run, in sentences and as a table: rounds set aside, and clocks of a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from specgate.analysis.machine.cpu_pace import uneven
from specgate.analysis.machine.gpu_clocks import at_highest_clock, power_cap
from specgate.analysis.machine.phrases import asides, set_aside_in_words, too_many_in_words
from specgate.contract import CellResult, Run
from specgate.contract.conditions import Conditions, GpuConditions, clock_events
from specgate.reports.common.figures import NONE, number, percent
from specgate.reports.common.parts import Table
from specgate.reports.common.summary import label, short

BY_COUNTERS: Final = "Rounds are set aside by the host's counters alone, never by how long a block took."
SCALED: Final = (
    "Beside the measured step time: what it would be at the GPU's highest clock if all of a step scaled with the SM "
    "clock. Steps wait for memory, too, so the truth lies between the two. Nothing is judged by it."
)


def sentences(run: Run) -> list[str]:
    """What a reader has to know of the machine, point by point; what several points share is said once.

    First comes what is said once for all of them, since a short report may leave out the last sentences.
    """
    of: dict[str, list[str]] = {}
    for key, found in run.conditions.items():
        for said in of_point(found, gpus(run, key)):
            of.setdefault(said, []).append(short(key))
    many = len(run.conditions) > 1
    said_of_points = [f"{', '.join(points)}: {said}" if many else said for said, points in of.items()]
    return [*of_cpus(run), *said_of_points]


def of_cpus(run: Run) -> Iterator[str]:
    """That the CPUs were not evenly fast, once for all points: the figures of the one where they were least so."""
    paces = [(key, c.cpu_pace) for key, c in run.conditions.items() if c.cpu_pace is not None and uneven(c.cpu_pace)]
    if not paces:
        return
    key, worst = max(paces, key=lambda found: found[1].slow_share)
    where = f"{len(paces)} of {len(run.conditions)} points, most at {short(key)}: " if len(run.conditions) > 1 else ""
    yield f"{where}{uneven(worst)}"


def gpus(run: Run, point: str) -> int:
    """How many GPUs shared the target at a point, as far as its engine says; else 1."""
    engine = run.engines.get(point)
    return engine.traffic.gpus if engine and engine.traffic else 1


def of_point(found: Conditions, count: int = 1) -> Iterator[str]:
    """`count`: how many GPUs were watched, and read as one."""
    host = found.host
    if host is not None and host.set_aside:
        yield set_aside_in_words(host)
    if host is not None and host.too_many:
        yield f"{too_many_in_words(host)}, so nothing was set aside"
    if host is not None:
        yield from asides(host)
    if cap := power_cap(found.gpu):
        yield f"{cap} (the worst of {count} GPUs)" if count > 1 else cap


def has_set_aside(run: Run) -> bool:
    """Whether the times of some rounds are left out."""
    return any(c.host is not None and c.host.set_aside for c in run.conditions.values())


def clocks(run: Run) -> Table:
    """One row per cell that ran on a GPU whose highest clock is known: step time, clocks and power."""
    head = (
        "cell",
        "clock events",
        "ms/step",
        "SM clock, MHz",
        "highest",
        "ms/step at the highest",
        "at the cap",
        "W of",
        "MHz, at the same times of all roles",
    )
    rows = []
    for result in run.cells:
        found = run.conditions.get(result.cell.point.key)
        if found is not None and found.gpu.max_sm_clock_mhz:
            row = [label(result.cell), *clock_row(result, found.gpu, found.gpu.max_sm_clock_mhz)]
            rows.append([*row, at_same_time(result, found.gpu)])
    return Table(head, rows, texts=2)


def at_same_time(result: CellResult, gpu: GpuConditions) -> str:
    """The SM clock that the role of a cell is compared by, with its standard error."""
    held = gpu.common_clocks.decoding.get(result.cell.role.name)
    if held is None or held.mhz is None:
        return NONE
    return f"{held.mhz:,.0f}" + (f" ± {held.standard_error_mhz:,.0f}" if held.standard_error_mhz is not None else "")


def clock_row(result: CellResult, gpu: GpuConditions, highest: int) -> list[str]:
    step = result.values.get("step_ms")
    ms, mhz = step.value if step else None, gpu.sm_clock_mhz.get(result.cell.role.name)
    limit = f"{gpu.power_limit_mw / 1000:.0f}" if gpu.power_limit_mw else NONE
    return [
        ", ".join(clock_events(gpu.clock_event_reasons)) or "none",
        NONE if ms is None else number(ms),
        NONE if mhz is None else f"{mhz:,.0f}",
        f"{highest:,}",
        NONE if ms is None or mhz is None else number(at_highest_clock(ms, mhz, highest)),
        percent(gpu.capped),
        NONE if gpu.power_w is None else f"{gpu.power_w:.0f} of {limit}",
    ]
