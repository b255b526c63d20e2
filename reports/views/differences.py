"""Differences between two runs apart from their figures. They explain most surprising comparisons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace

from specgate.analysis.cell_names import cell_name
from specgate.analysis.environment_diff import differences as facts_that_differ
from specgate.contract import Point, Run
from specgate.contract.comparisons import Contrast
from specgate.contract.conditions import Conditions, clock_events
from specgate.reports.common.figures import percent


@dataclass(frozen=True, slots=True)
class Difference:
    """One fact that is not the same in both runs. `a` or `b` is empty if that run has nothing under `key`."""

    group: str
    key: str
    a: str
    b: str


def differences(contrast: Contrast) -> list[Difference]:
    """All differences: first in what the runs were made with, then in what was asked, then in what the machine did.

    A difference that several points share is listed once.
    """
    a, b = contrast.a, contrast.b
    theirs = {c.anywhere.point: c.point for c in (r.cell for r in b.cells)}
    points = {c.point: theirs[c.anywhere.point] for c in contrast.cells}.items()
    every = [
        *made_with(a, b),
        *between("pair", asdict(a.pair), asdict(b.pair)),
        *(d for p, q in points for d in between("engine", engine(a, p), engine(b, q))),
        *(of(p.scenario, d) for p, q in points for d in between("scenario", scenario(a, p), scenario(b, q))),
        *(
            of(cell_name(p.key, a.scenarios), d)
            for p, q in points
            for d in between("prompts", prompts(a, p), prompts(b, q))
        ),
        *(
            of(cell_name(p.key, a.scenarios), d)
            for p, q in points
            for d in between("machine", during(a, p), during(b, q))
        ),
    ]
    return list(dict.fromkeys(every))


def between(group: str, a: Mapping[str, object], b: Mapping[str, object]) -> Iterator[Difference]:
    return (Difference(group, key, was or "", now or "") for key, was, now in facts_that_differ(a, b))


def made_with(a: Run, b: Run) -> Iterator[Difference]:
    """Yield the differences in fingerprint and environment."""
    # A run of another tool has no fingerprint: its absence is not a key that differs.
    one, other = ({**({"fingerprint": r.fingerprint} if r.fingerprint else {}), **r.environment} for r in (a, b))
    for difference in between("environment", one, other):
        inside = difference.key.removeprefix("fingerprint.")
        yield difference if inside == difference.key else replace(difference, group="fingerprint", key=inside)


def of(where: str, difference: Difference) -> Difference:
    """The difference with the scenario or point that it belongs to in front of its key."""
    return replace(difference, key=f"{where}: {difference.key}")


def engine(run: Run, point: Point) -> Mapping[str, object]:
    facts = run.engines.get(point.key)
    if facts is None:
        return {}
    hashed = ("target_sha256", "draft_sha256")  # they are in the fingerprint
    stated = {key: value for key, value in asdict(facts).items() if key not in (*hashed, "details", "kernels")}
    return {**stated, "kernels": len(facts.kernels or ()), **facts.details}


def scenario(run: Run, point: Point) -> Mapping[str, object]:
    silent = ("question", "source_file", "default")
    declared = run.scenarios.get(point.scenario)
    return {key: value for key, value in asdict(declared).items() if key not in silent} if declared else {}


def prompts(run: Run, point: Point) -> Mapping[str, object]:
    about = run.prompts.get(point.key, {})
    return {key: about[key] for key in ("sha256", "source", "seed", "pool") if key in about}


def during(run: Run, point: Point) -> Mapping[str, object]:
    """Return the conditions under which the point was measured.

    Figures that are never the same twice are rounded, so that only large differences show.
    """
    conditions = run.conditions.get(point.key)
    return said_of(conditions) if conditions else {"watched": "no"}


def said_of(conditions: Conditions) -> Mapping[str, object]:
    gpu = conditions.gpu
    clocks = {role: f"{mhz / 1000:.2f} GHz" for role, mhz in gpu.sm_clock_mhz.items()}
    heat = None if gpu.temperature_c is None else f"up to {5 * -(-gpu.temperature_c[1] // 5)} °C"
    return {
        "other processes' share of the CPUs": percent_of_five(conditions.other_cpu_share),
        **({} if conditions.cpu_pace is None else {"slow CPUs": percent_of_five(conditions.cpu_pace.slow_share)}),
        "GPU": gpu.uuid,
        "SM clock": clocks,
        "temperature": heat,
        "clock events": ", ".join(clock_events(gpu.clock_event_reasons)) or "none",
        "power limit": gpu.power_limit_mw,
        "foreign processes": ", ".join(gpu.foreign) or "none",
        "clock jumps": "none" if conditions.clock_jump_s < 1 else f"{conditions.clock_jump_s:.0f} s",
    }


def percent_of_five(share: float | None) -> str:
    return percent(None) if share is None else f"about {5 * round(20 * share)} %"
