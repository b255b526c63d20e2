"""The machine of a run, in sentences and as a table: rounds set aside, energy, and clocks of a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from specgate.analysis.cell_names import cell_name
from specgate.analysis.grouping import collected
from specgate.analysis.machine.cpu_pace import uneven
from specgate.analysis.machine.energy import PER_TOKEN, RATIO
from specgate.analysis.machine.gpu_clocks import at_highest_clock, power_cap
from specgate.analysis.machine.phrases import asides, set_aside_in_words, too_many_in_words
from specgate.contract import CellResult, Run
from specgate.contract.conditions import Conditions, GpuConditions, clock_events
from specgate.reports.common.figures import NONE, figure, number, percent, span
from specgate.reports.common.parts import Table

BY_COUNTERS: Final = "Rounds are set aside by the host's counters alone, never by how long a block took."
SCALED: Final = (
    "Beside the measured step time: what it would be at the GPU's highest clock if all of a step scaled with the SM "
    "clock. Steps wait for memory, too, so the truth lies between the two. Nothing is judged by it."
)


def sentences(run: Run) -> list[str]:
    """Return sentences about the machine, point by point. Points with the same sentence share it.

    Sentences about all points come first, since a short report may leave out the last ones.
    """
    of = collected(
        (sentence, cell_name(key, run.scenarios))
        for key, conditions in run.conditions.items()
        for sentence in of_point(conditions, gpus(run, key))
    )
    many = len(run.conditions) > 1
    said_of_points = [f"{', '.join(points)}: {sentence}" if many else sentence for sentence, points in of.items()]
    return [*of_cpus(run), *said_of_points, *of_energy(run)]


def of_cpus(run: Run) -> Iterator[str]:
    """Yield that the CPUs were not evenly fast, with the figures of the point where they were least so."""
    paces = [(key, c.cpu_pace) for key, c in run.conditions.items() if c.cpu_pace is not None and uneven(c.cpu_pace)]
    if not paces:
        return
    key, worst = max(paces, key=lambda pace: pace[1].slow_share)
    where = (
        f"{len(paces)} of {len(run.conditions)} points, most at {cell_name(key, run.scenarios)}: "
        if len(run.conditions) > 1
        else ""
    )
    yield f"{where}{uneven(worst)}"


def of_energy(run: Run) -> Iterator[str]:
    """Yield a sentence per point whose energy is known: joules per token of every role, and the ratio of spec cells."""
    points = list(dict.fromkeys(r.cell.point for r in run.cells if PER_TOKEN in r.values))
    for point in points:
        words = [energy_in_words(run, r) for r in run.cells if r.cell.point == point and PER_TOKEN in r.values]
        where = f"{cell_name(point.key, run.scenarios)}: " if len(points) > 1 else ""
        yield f"{where}energy per token: {', '.join(words)}"


def energy_in_words(run: Run, result: CellResult) -> str:
    """Return the joules per token of a cell: `spec-3 1.94 J (0.63×, 0.61 … 0.65)`."""
    comparison = run.comparison(result.cell.key)
    ratio = next((v for v in comparison.beside if v.metric == RATIO and v.value), None) if comparison else None
    beside = f" ({', '.join(filter(None, (figure(ratio), span(ratio))))})" if ratio else ""
    return f"{result.cell.role_name} {figure(result.values[PER_TOKEN])} J{beside}"


def gpus(run: Run, point: str) -> int:
    """Return the number of GPUs that share the target at a point; 1 if its engine does not say."""
    engine = run.engines.get(point)
    return engine.traffic.gpus if engine and engine.traffic else 1


def of_point(conditions: Conditions, count: int = 1) -> Iterator[str]:
    """`count`: how many GPUs were watched, and read as one."""
    host = conditions.host
    if host is not None and host.set_aside:
        yield set_aside_in_words(host)
    if host is not None and host.too_many:
        yield f"{too_many_in_words(host)}, so nothing was set aside"
    if host is not None:
        yield from asides(host)
    if cap := power_cap(conditions.gpu):
        yield f"{cap} (the worst of {count} GPUs)" if count > 1 else cap


def has_set_aside(run: Run) -> bool:
    """Return whether the times of some rounds are left out."""
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
        conditions = run.conditions.get(result.cell.point.key)
        if conditions is not None and (highest := conditions.gpu.max_sm_clock_mhz):
            row = [cell_name(result.cell.key, run.scenarios), *clock_row(result, conditions.gpu, highest)]
            rows.append([*row, at_same_time(result, conditions.gpu)])
    return Table(head, rows, texts=2)


def at_same_time(result: CellResult, gpu: GpuConditions) -> str:
    """The SM clock that the role of a cell is compared by, with its standard error."""
    clock = gpu.common_clocks.decoding.get(result.cell.role.name)
    if clock is None or clock.mhz is None:
        return NONE
    return f"{clock.mhz:,.0f}" + (f" ± {clock.standard_error_mhz:,.0f}" if clock.standard_error_mhz is not None else "")


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
