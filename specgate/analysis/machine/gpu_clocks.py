"""Clocks of the GPUs that a run could see.

A GPU at its power cap lowers its clock below the highest. That is no fault, but two runs at different clocks differ in
time although nothing else does.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from specgate.analysis.machine.clock_comparison import same_time_in_words
from specgate.contract.conditions import POWER_CAPS, THROTTLES, GpuConditions, GpuReading, clock_events


def visible_among(gpus: Sequence[Mapping[str, object]], variable: str | None) -> list[dict[str, object]]:
    """Those of `gpus` that CUDA programs are allowed to see, in their order. `variable`: CUDA_VISIBLE_DEVICES, or None
    where it is not set. As CUDA does, it stops at the first word that names no GPU, or one again.
    """
    if variable is None:
        return [dict(gpu) for gpu in gpus]
    visible: list[dict[str, object]] = []
    for word in map(str.strip, variable.split(",")):
        named = [
            dict(gpu)
            for index, gpu in enumerate(gpus)
            if word == str(index) or (word.startswith("GPU-") and str(gpu["uuid"]).startswith(word))
        ]
        if not named or named[0] in visible:
            break
        visible.append(named[0])
    return visible


def seen_by(environment: Mapping[str, Any]) -> list[dict[str, object]]:
    """The GPUs of env.json that the run's programs were allowed to see, in their order."""
    variables = environment.get("variables") or {}
    return visible_among(environment.get("gpus") or [], variables.get("CUDA_VISIBLE_DEVICES"))


CLOCKS_APART: Final = 0.005
"""Two sides whose mean SM clocks lie further apart than this, as a share of the higher one, ran at different clocks."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """The clocks and the power of one side. None where no reading tells.

    `sm_mhz`, `power_w`: means. `highest_mhz`: the highest clock that the GPU can reach. `limit_w`: the lowest power
    limit. `capped`: the share of the readings at a power cap. `slowed`: the reasons why the GPU slowed itself down.
    """

    uuids: tuple[str, ...]
    sm_mhz: float | None
    highest_mhz: int | None
    power_w: float | None
    limit_w: float | None
    capped: float | None
    slowed: tuple[str, ...]


def clocks_of(readings: Sequence[GpuReading]) -> Clocks:
    """The clocks over `readings`, which should be those that were taken during blocks."""
    clocks = [g.sm_clock_mhz for g in readings if g.sm_clock_mhz is not None]
    power = [g.power_mw for g in readings if g.power_mw is not None]
    limits = [g.power_limit_mw for g in readings if g.power_limit_mw is not None]
    reasons = [g.clock_event_reasons for g in readings if g.clock_event_reasons is not None]
    slowed = dict.fromkeys(name for bits in reasons for name in clock_events(bits & THROTTLES))
    return Clocks(
        uuids=tuple(dict.fromkeys(g.uuid for g in readings)),
        sm_mhz=statistics.fmean(clocks) if clocks else None,
        highest_mhz=max((g.max_sm_clock_mhz for g in readings if g.max_sm_clock_mhz is not None), default=None),
        power_w=statistics.fmean(power) / 1000 if power else None,
        limit_w=min(limits) / 1000 if limits else None,
        capped=statistics.fmean(bool(bits & POWER_CAPS) for bits in reasons) if reasons else None,
        slowed=tuple(slowed),
    )


def clock_warnings(
    a: Sequence[GpuReading], b: Sequence[GpuReading], names: tuple[str, str] = ("A", "B"), apart: float = CLOCKS_APART
) -> tuple[str, ...]:
    """Warnings of differences between the GPUs of two sides that may change their times; empty without any.

    `a`, `b`: readings during the blocks of each side. `apart`: see `CLOCKS_APART`.
    """
    return tuple(_differences(clocks_of(a), clocks_of(b), names, apart))


def _differences(a: Clocks, b: Clocks, names: tuple[str, str], apart: float) -> Iterator[str]:
    one, other = names
    if a.uuids != b.uuids:
        yield f"{one} ran on {', '.join(a.uuids) or 'no GPU'}, {other} on {', '.join(b.uuids) or 'no GPU'}"
    if a.sm_mhz and b.sm_mhz and (shift := abs(a.sm_mhz - b.sm_mhz) / max(a.sm_mhz, b.sm_mhz)) > apart:
        clocks = f"{one} ran at an SM clock of {in_words(a)}, {other} at {in_words(b)}: {100 * shift:.1f} % apart"
        yield f"{clocks}; a part of any difference in time may be the clock's"
    elif (a.sm_mhz is None) != (b.sm_mhz is None):
        unknown = one if a.sm_mhz is None else other
        yield f"the SM clock of {unknown} is not known, so the two clocks cannot be compared"
    if a.limit_w is not None and b.limit_w is not None and a.limit_w != b.limit_w:
        yield f"the power limit was {a.limit_w:.0f} W for {one} and {b.limit_w:.0f} W for {other}"
    if a.slowed != b.slowed:
        reasons = (f"{name}: {', '.join(side.slowed) or 'never'}" for name, side in ((one, a), (other, b)))
        yield f"the GPU slowed itself down differently ({'; '.join(reasons)})"


def in_words(side: Clocks) -> str:
    """The mean clock with the highest one, and the power cap where the side ran at it."""
    clock = f"{side.sm_mhz:,.0f} MHz"
    clock += f" of at most {side.highest_mhz:,}" if side.highest_mhz else ""
    if not side.capped:
        return clock
    power = f", {side.power_w:.0f} W of {side.limit_w:.0f} W" if side.power_w and side.limit_w else ""
    return f"{clock} (at its power cap in {side.capped:.0%} of the samples{power})"


def power_cap(gpu: GpuConditions) -> str | None:
    """Sentence that the GPU ran at its power cap, with both clocks and powers; None if it did not or nothing tells."""
    if not gpu.capped:
        return None
    clocks = ", ".join(f"{role} {mhz:,.0f}" for role, mhz in gpu.sm_clock_mhz.items())
    parts = [f"the GPU was at its power cap in {gpu.capped:.0%} of the samples"]
    if clocks:
        parts.append(f"SM clock {clocks} MHz of at most {f'{gpu.max_sm_clock_mhz:,}' if gpu.max_sm_clock_mhz else '?'}")
        if same := same_time_in_words(gpu):
            parts[-1] += f" ({same})"
    if gpu.power_w is not None and gpu.power_limit_mw:
        parts.append(f"{gpu.power_w:.0f} W of {gpu.power_limit_mw / 1000:.0f} W")
    return f"{parts[0]}: {', '.join(parts[1:])}" if parts[1:] else parts[0]


def at_highest_clock(ms: float, mhz: float, highest_mhz: float) -> float:
    """Time that something would take at the highest clock, if all of it scaled with the clock.

    That is the least it could take there: what waits for memory does not scale with the SM clock.
    """
    return ms * mhz / highest_mhz
