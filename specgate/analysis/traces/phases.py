"""Phases of a decode step, told by the ranges that an engine opens around its parts.

A phase has the host's time in its ranges, and the GPU's time of the work that calls in them launched. Of ranges within
each other the innermost one counts. A CUDA graph is launched in one call, so that its work belongs to no phase in it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from specgate.analysis.traces.recording import Call, Mark, Work

PHASES: Final[Mapping[str, re.Pattern[str]]] = {
    # TurboMind's EAGLE-3 and the built-in engine; SGLang 0.5. TurboMind may set a scope and a slash before a name.
    "draft": re.compile(r"(?:.*/)?(EagleModule::forward\w*|EAGLE_DRAFT_\w+|eagle_draft_step)$|step\[\s*DRAFT_EXTEND"),
    "masks": re.compile(r"(?:.*/)?EAGLE_TREE_MASKS$"),
    "verify": re.compile(r"step\[\s*TARGET_VERIFY"),
    "accept": re.compile(r"(?:.*/)?EAGLE_ACCEPT$"),
    "commit": re.compile(r"(?:.*/)?(EAGLE_TAIL_COMMIT|EAGLE::KVCacheRewind)$"),
    "rest of the step": re.compile(r"(?:.*/)?(BASE_DECODE_STEP|dynamicDecode|EAGLE_CYCLE_SPEC_\d+)$"),
}
"""Phase → names of its ranges."""


@dataclass(frozen=True, slots=True)
class Phase:
    """Time of a phase in a window. `host_ns`: in its ranges alone. `gpu_ns`: of the work launched there. `ranges`: how
    many there were.
    """

    host_ns: int = 0
    gpu_ns: int = 0
    ranges: int = 0


def phases_of(marks: Iterable[Mark], calls: Sequence[Call], work: Sequence[Work]) -> dict[str, Phase]:
    """Phase → its time, for the phases that these marks tell. `calls`, `work`: of the same window."""
    named = [(phase, mark) for mark in marks if (phase := phase_named(mark.name)) is not None]
    host, innermost = times_in(named)
    launched_in = {call.correlation: phase for call in calls if (phase := innermost(call.thread, call.begin_ns))}
    phases = {}
    for phase in PHASES:
        if ranges := sum(name == phase for name, _ in named):
            gpu = sum(w.end_ns - w.begin_ns for w in work if launched_in.get(w.correlation) == phase)
            phases[phase] = Phase(host.get(phase, 0), gpu, ranges)
    return phases


def phase_named(name: str) -> str | None:
    """The phase that a range of this name tells; None if it tells none."""
    return next((phase for phase, pattern in PHASES.items() if pattern.match(name)), None)


def times_in(named: Sequence[tuple[str, Mark]]) -> tuple[dict[str, int], Callable[[str, int], str | None]]:
    """(phase → time on the host, the innermost phase at a moment of a thread)."""
    total: dict[str, int] = {}
    borders: dict[str, tuple[list[int], list[str | None]]] = {}
    for thread in {mark.thread for _, mark in named}:
        mine = [(phase, mark) for phase, mark in named if mark.thread == thread]
        edges = sorted(
            [(m.begin_ns, 1, -m.end_ns, phase) for phase, m in mine] + [(m.end_ns, 0, 0, phase) for phase, m in mine]
        )
        times, phases, open_ = list[int](), list[str | None](), list[str]()
        for at, begins, _, phase in edges:
            if times and open_:
                total[open_[-1]] = total.get(open_[-1], 0) + at - times[-1]
            if begins:
                open_.append(phase)
            else:
                open_.reverse()
                open_.remove(phase)
                open_.reverse()
            times.append(at)
            phases.append(open_[-1] if open_ else None)
        borders[thread] = times, phases

    def innermost(thread: str, moment: int) -> str | None:
        times, phases = borders.get(thread, ([], []))
        number = bisect_right(times, moment)
        return phases[number - 1] if number else None

    return total, innermost
